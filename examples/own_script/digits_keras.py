"""A small network on the digits, with Keras and TensorFlow: `hpcps launch -n 4 python digits_keras.py`.

The lines that an existing script needs are marked. `--rule` as in digits.py.
"""

import argparse

import keras
from data_numpy import digits

import hpcps.keras as bps  # 1

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
optimizer = bps.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9), rule=args.rule)  # 3
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(optimizer, loss, metrics=["accuracy"], jit_compile=False)  # 4: XLA cannot call Python
callbacks = [
    bps.BroadcastGlobalVariablesCallback(root_rank=0),  # 5
    bps.MetricAverageCallback(),  # 6: the mean over the processes
    bps.LearningRateWarmupCallback(initial_lr=0.1, warmup_epochs=1),  # for a learning rate that grows with bps.size()
    keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: bps.log(accuracy=logs["val_accuracy"])),
]
model.fit(
    x, y, batch_size=32, epochs=args.epochs, callbacks=callbacks, validation_data=(test_x, test_y), verbose=0
)  # fmt: skip
accuracy = model.evaluate(test_x, test_y, verbose=0)[1]
if bps.rank() == 0:
    print(f"{bps.size()} processes: accuracy {accuracy:.3f}", flush=True)
