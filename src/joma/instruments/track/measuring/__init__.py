"""One member of a series, measured: here, on a cluster, fetched or placed."""
