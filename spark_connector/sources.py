"""Choose the LogSource for the options of a read. Thread rule: any thread."""

from __future__ import annotations

from spark_connector.log_source import LogSource
from spark_connector.options import ReadOptions


def source_of(options: ReadOptions) -> LogSource:
    """Return the source that the options name. Raises KreplicaError."""
    # Imported here, because a worker uses only one of them.
    if options.bootstrap_servers is not None:
        from spark_connector.cluster_source import ClusterSource

        return ClusterSource(options.bootstrap_servers, options.isolation, options.fail_on_data_loss)
    from spark_connector.directory_source import DirectorySource

    return DirectorySource(
        options.paths,
        options.isolation,
        skip_damaged=options.skip_damaged,
        fail_on_data_loss=options.fail_on_data_loss,
    )
