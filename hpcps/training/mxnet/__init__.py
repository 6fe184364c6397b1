"""The learner in MXNet, with networks of Gluon."""
