"""Keys that several checks name."""

SERVERS, WORKERS, VALIDATORS = ("topology", "servers"), ("topology", "workers"), ("topology", "validators")
DATA, MODE = ("data", "name"), ("train", "mode")
