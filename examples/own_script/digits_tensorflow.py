"""A small network on the digits, with a loop of TensorFlow: `hpcps launch -n 4 python digits_tensorflow.py`.

The lines that an existing script needs are marked. `--rule` as in digits.py.
"""

import argparse

import keras
import tensorflow as tf
from data_numpy import batches, digits

import hpcps.tensorflow as bps  # 1

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--rule", help="a rule of hpcps, such as median; default: the mean")
args = parser.parse_args()

bps.init()  # 2
x, y, test_x, test_y = digits(bps.rank(), bps.size())
keras.utils.set_random_seed(bps.rank())
model = keras.Sequential(
    [keras.layers.Input((64,)), keras.layers.Dense(128, activation="relu"), keras.layers.Dense(10)]
)
optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
optimizer.build(model.trainable_variables)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@tf.function
def step(samples, labels):
    """Train with a batch."""
    with bps.DistributedGradientTape(rule=args.rule) as tape:  # 3
        value = loss(labels, model(samples, training=True))
    optimizer.apply(tape.gradient(value, model.trainable_variables), model.trainable_variables)


bps.broadcast_variables([*model.weights, *optimizer.variables], root_rank=0)  # 4
for epoch in range(args.epochs):
    for samples, labels in batches(x, y, epoch):
        step(samples, labels)
    accuracy = tf.reduce_mean(tf.cast(tf.argmax(model(test_x), 1) == test_y, tf.float32))
    accuracy = float(bps.push_pull(accuracy, name="accuracy"))
    bps.log(accuracy=accuracy)  # for `hpcps status` and `hpcps plot digits_tensorflow`
if bps.rank() == 0:
    print(f"{bps.size()} processes: accuracy {accuracy:.3f}", flush=True)
