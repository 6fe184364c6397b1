"""hpcps.tensorflow and hpcps.keras: `make frameworks` runs these tests where TensorFlow is installed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from launched_scripts import launched

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["KERAS_BACKEND"] = "tensorflow"
WHY = "TensorFlow is not installed: `make frameworks` installs it in an environment"
tf = pytest.importorskip("tensorflow", reason=WHY)
keras = pytest.importorskip("keras", reason=WHY)

import hpcps.keras as bps  # noqa: E402
from hpcps.errors import RunError, SpecError  # noqa: E402
from hpcps.rules import Median  # noqa: E402
from hpcps.tensorflow import DistributedGradientTape  # noqa: E402

# Keras converts its variables in a way that numpy 2 deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
EXAMPLES = Path(__file__).resolve().parents[2] / "examples/own_script"

BITS = """
import sys
import numpy as np
kind = sys.argv[1]
SHAPES = {"a": (500, 600), "b": (7,), "c": (), "e": (1000, 20)}
if kind == "torch":
    import torch
    import hpcps.torch as bps
    def made(array, dtype):
        return torch.from_numpy(array).to(getattr(torch, dtype))
    def taken(array):
        return torch.cat([array.reshape(-1)]).view(torch.uint8).numpy().tobytes()
else:
    import tensorflow as tf
    import hpcps.tensorflow as bps
    def made(array, dtype):
        return tf.cast(array, dtype)
    def taken(array):
        return array.numpy().tobytes()
    graph = tf.function(bps.push_pull)
bps.init()

def given(array, dtype):
    # numpy has no bfloat16, and the frameworks convert other values in different ways.
    array = np.abs(array) if dtype == "uint8" else array
    return made(np.asarray(array, np.float32 if dtype == "bfloat16" else dtype), dtype)

random = np.random.default_rng(bps.rank())
found = []
for dtype in ("float16", "bfloat16", "float32", "float64", "int8", "uint8", "int16", "int32", "int64", "bool"):
    for shape in ((), (0,), (5, 33), (300, 211)):
        array, average = given(random.normal(size=shape) * 9, dtype), "float" in dtype
        for push_pull in (bps.push_pull, bps.push_pull if kind == "torch" else graph):
            found.append(push_pull(array, average=average, name=f"{dtype} {shape}"))
        found.append(bps.broadcast(array, 1, name=f"{dtype} {shape}"))

def combined(dtype, options):
    types = {name: "float32" if name == "e" else dtype for name in SHAPES}
    steps = [{name: given(random.normal(size=SHAPES[name]), types[name]) for name in SHAPES} for _ in range(3)]
    if kind == "torch":
        parameters = {name: torch.nn.Parameter(torch.zeros_like(each)) for name, each in steps[0].items()}
        optimizer = torch.optim.SGD(parameters.values(), lr=1.0)
        optimizer = bps.DistributedOptimizer(optimizer, parameters.items(), **options)
        for step in steps:
            sum((parameters[name] * each).sum() for name, each in step.items()).backward()
            optimizer.synchronize()
            yield from [each.grad for each in parameters.values()]
            with optimizer.skip_synchronize():
                optimizer.step()
            optimizer.zero_grad()
    else:
        variables = [tf.Variable(tf.zeros_like(each), name=name) for name, each in steps[0].items()]
        def gradients(step):
            with bps.DistributedGradientTape(**options) as tape:
                sums = [tf.reduce_sum(v * each) for v, each in zip(variables, step.values(), strict=True)]
                loss = tf.add_n([tf.cast(each, "float64") for each in sums])
            return tape.gradient(loss, variables)
        for step, call in zip(steps, (gradients, tf.function(gradients), gradients), strict=True):
            yield from call(step)

for dtype, options in (
    ("float32", {}), ("bfloat16", {}), ("float64", {"average": False}), ("float16", {"rule": "median"}),
    ("float32", {"rule": {"kind": "krum", "f": 0}}), ("float32", {"rule": "median", "compression": "onebit"}),
):
    found += combined(dtype, options)
if bps.rank() == 0:
    with open(f"{kind}.bytes", "wb") as file:
        for each in found:
            file.write(str(tuple(each.shape)).encode() + taken(each))
"""

STEPS = """
import os, signal, sys
import keras
import numpy as np
import tensorflow as tf
import hpcps.keras as bps
bps.init()
model = keras.Sequential([keras.layers.Input((20,)), keras.layers.Dense(300), keras.layers.Dense(10)])
model.compile(bps.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")

class End(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if batch == 2 and bps.rank() == 1:
            if sys.argv[1] == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError("boom")

model.fit(np.ones((200, 20)), np.ones((200, 10)), batch_size=20, verbose=0, callbacks=[End()])
"""


@pytest.fixture
def alone():
    bps.init(alone=True)
    yield
    bps.shutdown()


@pytest.mark.usefixtures("starts_processes")
def test_results_have_the_bits_of_torch(tmp_path):
    for kind in ("tensorflow", "torch"):
        launched(tmp_path, BITS, kind)
    one, other = ((tmp_path / f"{kind}.bytes").read_bytes() for kind in ("tensorflow", "torch"))
    assert len(one) > 10_000_000
    assert one == other


@pytest.mark.usefixtures("starts_processes")
@pytest.mark.parametrize("name", ["keras", "tensorflow"])
def test_an_example_learns_the_digits(name, tmp_path):
    printed = launched(tmp_path, EXAMPLES / f"digits_{name}.py", "--epochs", "4", "--rule", "median")
    assert "3 processes: accuracy 0.9" in printed
    assert re.search(r": \d\d steps, ", printed)


@pytest.mark.usefixtures("starts_processes")
@pytest.mark.parametrize(("how", "why"), [("killed", "has ended: it was killed"), ("failed", "has failed: ValueError")])
def test_a_process_that_ends_is_named_in_a_sentence(how, why, tmp_path):
    printed = launched(tmp_path, STEPS, how, succeeds=False)
    sentence = f"script.py, line 18: worker-[02].* tensor 'gradient/sequential/.*: worker-1 {why}"
    lines = [line for line in printed.splitlines() if re.search(sentence, line)]
    assert len(lines) == 2, printed
    assert printed.count("Traceback") == (how == "failed"), printed
    assert "worker-1 on " in printed.splitlines()[-1]


@pytest.mark.usefixtures("alone")
def test_gradients_come_back_in_their_structure():
    w, unused = tf.Variable([1.0, 2.0]), tf.Variable(3.0)
    with DistributedGradientTape(tf.GradientTape(persistent=True)) as tape:
        loss = tf.reduce_sum(w * w)
    found = tape.gradient(loss, {"w": w, "rest": [unused]})
    assert found["w"].numpy().tolist() == [2, 4]
    assert found["rest"] == [None]
    assert tape.gradient(loss, w).numpy().tolist() == [2, 4]
    assert tape.gradient(loss, [unused]) == [None]


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("compiled", [False, True])
def test_sparse_gradients_become_dense(compiled):
    table = tf.Variable(tf.ones((4, 2)))

    def gradient(rows):
        with DistributedGradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, rows))
        return tape.gradient(loss, table)

    found = (tf.function(gradient) if compiled else gradient)(tf.constant([1, 1, 3]))
    assert found.numpy().tolist() == [[0, 0], [2, 2], [0, 0], [1, 1]]


def compiled_model(**options):
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1), keras.layers.Dropout(0.1)])
    optimizer = keras.optimizers.SGD(0.25, momentum=0.5)
    optimizer = bps.DistributedOptimizer(optimizer, backward_passes_per_step=1, average_aggregated_gradients=True)
    model.compile(optimizer, "mse", **options)
    return model


@pytest.mark.usefixtures("alone")
def test_an_optimizer_trains_and_is_saved_as_before(tmp_path):
    model = compiled_model()
    before = model.get_weights()
    callbacks = [bps.callbacks.BroadcastGlobalVariablesCallback(0), bps.callbacks.MetricAverageCallback()]
    history = model.fit(np.ones((4, 2)), np.ones((4, 1)), batch_size=2, verbose=0, callbacks=callbacks).history
    assert len(history["loss"]) == 1
    assert any(np.any(one != other) for one, other in zip(before, model.get_weights(), strict=True))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded.optimizer) is keras.optimizers.SGD
    assert int(loaded.optimizer.iterations) == 2


def test_the_learning_rate_warms_up(monkeypatch):
    monkeypatch.setattr("hpcps.keras.size", lambda: 4)
    model, rates = compiled_model(), []
    warmup = bps.LearningRateWarmupCallback(0.8, warmup_epochs=2, steps_per_epoch=2)
    warmup.set_model(model)
    for epoch in range(3):
        warmup.on_epoch_begin(epoch)
        for batch in range(2):
            warmup.on_train_batch_begin(batch)
            rates.append(round(float(model.optimizer.learning_rate), 6))
    assert rates == [0.2, 0.35, 0.5, 0.65, 0.8, 0.8]
    model.optimizer.learning_rate = 0.1  # such as by another callback
    warmup.on_train_batch_begin(0)
    assert float(model.optimizer.learning_rate) == pytest.approx(0.1)


def graph(call, **options):
    return tf.function(call, **options)(tf.ones(2))


def mixed():
    keras.config.set_dtype_policy("mixed_float16")
    try:
        bps.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()))
        bps.DistributedOptimizer(keras.optimizers.SGD())
    finally:
        keras.config.set_dtype_policy("float32")


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: graph(bps.push_pull, jit_compile=True), "in a function that XLA compiles, which cannot call Python"),
        (
            lambda: compiled_model(jit_compile=True).fit(np.ones((2, 2)), np.ones((2, 1)), verbose=0),
            r"give tf.function or compile\(\) jit_compile=False",
        ),
        (lambda: bps.push_pull(tf.constant([1], "uint32"), False, "x"), "array 'x' is uint32, which cannot"),
        (lambda: bps.push_pull(tf.constant([1]), name="x"), "'x' is int32: the mean is for floats"),
        (lambda: bps.push_pull(object()), "exchanges expect a tensor, not <object"),
        (lambda: bps.push_pull(tf.constant("text")), "an array without a name is .S4, which cannot be exchanged"),
        (lambda: bps.broadcast(tf.ones(2), 1, "w"), "the root_rank of array 'w' is 1: the ranks go from 0 to 0"),
        (lambda: DistributedGradientTape(average=False, rule="median"), "a rule is in place of the mean"),
        (lambda: DistributedGradientTape(rule=3), "rule must be the name, the table or an object of one"),
        (
            lambda: bps.DistributedOptimizer(keras.optimizers.SGD(), backward_passes_per_step=2),
            "backward_passes_per_step is 2: let Keras add up gradients, with gradient_accumulation_steps",
        ),
        (lambda: bps.DistributedOptimizer("sgd"), "expects an optimizer of Keras 3, not 'sgd'"),
        (
            lambda: bps.DistributedOptimizer(bps.DistributedOptimizer(keras.optimizers.SGD())),
            "has this optimizer already",
        ),
        (mixed, r"with mixed_float16 .* use DistributedOptimizer\(keras.optimizers.LossScaleOptimizer"),
        (lambda: bps.LearningRateWarmupCallback(0.1, 0), "warmup_epochs is 0: give a positive number"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(SpecError, match=message):
        call()


@pytest.mark.usefixtures("alone")
def test_an_error_within_a_graph_keeps_its_text():
    with pytest.raises(tf.errors.OpError, match="array 'w' is uint32, which cannot be exchanged"):
        tf.function(lambda x: bps.push_pull(x, False, "w"))(tf.constant([1], "uint32"))


@pytest.mark.usefixtures("alone")
def test_rules_by_name_table_and_object():
    for rule in ("median", {"kind": "median"}, Median()):
        assert bps.allreduce(tf.ones(2), rule=rule).numpy().tolist() == [1, 1]


@pytest.mark.usefixtures("starts_processes")
def test_another_backend_of_keras_is_refused(tmp_path):
    environment = {**os.environ, "KERAS_BACKEND": "torch"}
    done = subprocess.run(
        [sys.executable, "-c", "import hpcps.keras"],
        capture_output=True, text=True, check=False, timeout=60, env=environment, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 1
    assert "hpcps.keras is for Keras with TensorFlow, and the backend is torch: set KERAS_BACKEND" in done.stderr
    assert "Traceback" not in done.stderr


def test_what_there_is_before_init():
    with pytest.raises(RunError, match=r"call init\(\) first"):
        bps.push_pull(tf.ones(2))
