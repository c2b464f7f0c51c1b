"""From a trace and a device to the memory a job takes, with what is not known about it."""
