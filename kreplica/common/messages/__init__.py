"""Kafka's requests and responses, one module for each kind of client."""
