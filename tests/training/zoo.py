"""The networks of Gluon's model zoo, at the sizes of the study of ESync, with 1 channel and 10 classes."""

SIZES = {
    "resnet18_v1": 28,
    "resnet50_v1": 28,
    "resnet50_v2": 28,
    "mobilenet_v1": 28,
    "mobilenet_v2": 28,
    "alexnet": 224,
    "inception_v3": 299,
}
"""Height and width of an image."""

COUNTS = {
    "resnet18_v1": 11_175_370,
    "resnet50_v1": 23_541_130,
    "resnet50_v2": 23_514_698,
    "mobilenet_v1": 3_216_650,
    "mobilenet_v2": 2_237_184,
    "alexnet": 57_029_322,
    "inception_v3": 21_805_482,
}
"""Trainable parameters: the sums over `collect_params()` of MXNet 1.9.1 with `grad_req` other than "null", which
test_backends.py computes again. The ResNets are those with a 7x7 convolution and pooling, `thumbnail=False`, also for
images of 28 by 28: the other ResNet-18 has 11,172,682, which is 11.17 million."""

PUBLISHED = {
    "resnet18_v1": 11.18,
    "resnet50_v1": 23.54,
    "resnet50_v2": 23.51,
    "mobilenet_v1": 3.22,
    "mobilenet_v2": 2.24,
    "alexnet": 57.03,
}
"""Millions of parameters in the study of ESync, which does not state that of Inception v3."""
