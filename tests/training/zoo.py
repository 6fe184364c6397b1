"""The networks of Gluon's model zoo and LeNet, with 1 channel and 10 classes."""

SIZES = {
    "resnet18_v1": 28,
    "resnet18_v2": 28,
    "resnet34_v1": 28,
    "resnet34_v2": 28,
    "resnet50_v1": 28,
    "resnet50_v2": 28,
    "resnet101_v1": 28,
    "resnet101_v2": 28,
    "resnet152_v1": 28,
    "resnet152_v2": 28,
    "vgg11": 32,
    "vgg13": 32,
    "vgg16": 32,
    "vgg19": 32,
    "vgg11_bn": 32,
    "vgg13_bn": 32,
    "vgg16_bn": 32,
    "vgg19_bn": 32,
    "mobilenet_v1": 28,
    "mobilenet_v2": 28,
    "lenet": 28,
    "alexnet": 224,
    "inception_v3": 299,
}
"""Height and width of an image."""

COUNTS = {
    "resnet18_v1": 11_175_370,
    "resnet18_v2": 11_173_706,
    "resnet34_v1": 21_283_530,
    "resnet34_v2": 21_281_866,
    "resnet50_v1": 23_541_130,
    "resnet50_v2": 23_514_698,
    "resnet101_v1": 42_555_018,
    "resnet101_v2": 42_506_826,
    "resnet152_v1": 58_217_866,
    "resnet152_v2": 58_150_474,
    "vgg11": 28_142_858,
    "vgg13": 28_327_370,
    "vgg16": 33_637_066,
    "vgg19": 38_946_762,
    "vgg11_bn": 28_148_362,
    "vgg13_bn": 28_333_258,
    "vgg16_bn": 33_645_514,
    "vgg19_bn": 38_957_770,
    "mobilenet_v1": 3_216_650,
    "mobilenet_v2": 2_237_184,
    "lenet": 431_080,
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

FOR_IMAGENET = {
    "resnet18_v1": 11_699_112,
    "resnet18_v2": 11_695_796,
    "resnet34_v1": 21_814_696,
    "resnet34_v2": 21_811_380,
    "resnet50_v1": 25_629_032,
    "resnet50_v2": 25_595_060,
    "resnet101_v1": 44_695_144,
    "resnet101_v2": 44_639_412,
    "resnet152_v1": 60_404_072,
    "resnet152_v2": 60_329_140,
    "vgg11": 132_863_336,
    "vgg13": 133_047_848,
    "vgg16": 138_357_544,
    "vgg19": 143_667_240,
    "vgg11_bn": 132_874_344,
    "vgg13_bn": 133_059_624,
    "vgg16_bn": 138_374_440,
    "vgg19_bn": 143_689_256,
}
"""Parameters in the documentation of Gluon's model zoo, for 3 channels, 224 by 224 and 1,000 classes: with the running
statistics of BatchNorm, and with a factor and a summand, which are constant, of the BatchNorm before a ResNet v2."""
