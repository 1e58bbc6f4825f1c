"""Running an experiment: lanes, resume, the origin of data and versions."""
