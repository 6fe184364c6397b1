"""The paths of keys that several checks name."""

SERVERS, WORKERS, VALIDATORS = ("topology", "servers"), ("topology", "workers"), ("topology", "validators")
DATA, MODE, EXCHANGE = ("data", "name"), ("train", "mode"), ("train", "exchange")
