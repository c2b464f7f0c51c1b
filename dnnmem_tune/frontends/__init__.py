"""Where traces come from: the only place that imports a framework, and only in a worker process."""
