# One node as a container:
#   docker build -t kreplica .
#   docker run -p 9092:9092 -v kreplica:/data kreplica
FROM python:3.13-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY . .
RUN python -m venv /opt/kreplica \
    && /opt/kreplica/bin/pip install --no-cache-dir --constraint constraints.txt '.[server,client,security]'

FROM python:3.13-slim
RUN useradd --system --uid 10001 kreplica && install -d -o kreplica /data
COPY --from=build /opt/kreplica /opt/kreplica
COPY docker-entrypoint.sh /usr/local/bin/
ENV PATH=/opt/kreplica/bin:$PATH
USER kreplica
VOLUME /data
EXPOSE 9092
HEALTHCHECK --start-period=20s CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:9095/health', timeout=5)"]
ENTRYPOINT ["docker-entrypoint.sh"]
