#!/bin/sh
# Without arguments: one node on /data, formatted at the first start. With arguments: any command of kreplica.
set -eu
if [ "$#" -gt 0 ]; then
  exec kreplica "$@"
fi
kreplica format --directory /data --node-id 1 --ignore-formatted
exec kreplica serve --directory /data --node-id 1 --listen 0.0.0.0:9092 --advertise "${ADVERTISE:-localhost:9092}" \
  --controller-listen 127.0.0.1:9093 --quorum 1@127.0.0.1:9093 --metrics-listen 127.0.0.1:9095
