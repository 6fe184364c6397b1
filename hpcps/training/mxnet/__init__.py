"""The trainer in MXNet, with networks of Gluon."""
