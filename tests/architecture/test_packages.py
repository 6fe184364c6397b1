"""The architecture: which package may import which, and how packages, modules and classes are called."""

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

import hpcps

ROOT = Path(hpcps.__file__).parent

LAYERS = (
    ("errors", "an error for people: what is wrong, where, what to do"),
    ("inputs", "reads files and numbers that others wrote"),
    ("seeds", "the random generator of a role for a purpose"),
    ("registry", "components by name: built in, from packages, from plugin files"),
    ("numerics", "blocks of the flat vector, updates, and the compiled kernels of rules"),
    ("rules", "what decides which updates enter the model: functions on arrays, with their keys"),
    ("attacks", "what Byzantine workers send: functions on arrays, with their keys"),
    ("policies", "how many local steps each role takes in a round: functions of measured speeds, with their keys"),
    ("optimizers", "how a combined update changes the model: functions on arrays, with their keys"),
    ("compression", "how blocks of an update are encoded: functions on arrays, with their keys"),
    ("callbacks", "what is told of a run while it runs, and to whom: functions of reports, with their keys"),
    ("models", "networks, and their keys"),
    ("data", "data sets, splits and batches, and their keys"),
    ("spec", "the experiment file: schema, mistakes, sweep, run id"),
    ("protocol", "messages, the roster of roles, partitions, the schedule of rounds"),
    ("transport", "carries messages: in process, MPI, shared memory, ps-lite"),
    ("kvstore", "push and pull on ps-lite nodes, without roles"),
    ("training", "trainers of each backend"),
    ("aggregation", "how what several senders send becomes a result: in a round, and in the exchange of a script"),
    ("roles", "server, validator, worker, adversary, evaluator: an event in, effects out"),
    ("records", "what a run leaves behind"),
    ("figures", "tables and plots of records"),
    ("launch", "hosts, placement, launchers, supervision"),
    ("execution", "drives roles: a process of a launch, or all in one; simulated time; the queue of a sweep"),
    ("session", "the exchange of tensors between the processes of a person's own script"),
    ("numpy", "that exchange for scripts whose tensors are arrays"),
    ("mxnet", "that exchange for scripts of MXNet's Gluon"),
    ("torch", "that exchange for scripts of PyTorch"),
    ("jax", "that exchange for scripts of JAX"),
    ("tensorflow", "that exchange for scripts of TensorFlow"),
    ("keras", "an optimizer and callbacks of Keras for it"),
    ("library", "what a script or notebook calls: experiments, callbacks, one worker"),
    ("cli", "what a user types"),
    ("__init__", "the names that `import hpcps` offers"),
    ("__main__", "`python -m hpcps`"),
)
"""The packages and modules of hpcps from the bottom to the top; each imports only those above it in this list.

`registry` finds the packages of components by their names (`registry/kinds.py`), which no import shows: it knows where
they are, and nothing of what is in them.
"""

ORDER = [name for name, _ in LAYERS]


@cache
def modules():
    """Return the syntax tree of each module."""
    return {path: ast.parse(path.read_text()) for path in sorted(ROOT.rglob("*.py"))}


@pytest.fixture(scope="module", autouse=True)
def _parsed_once():
    """Parse all modules before the first test, which would else take longer than the others."""
    modules()


def layer_of(path):
    """Return the package below hpcps, or the module beside them, that a file belongs to."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported(tree, path):
    """Yield what a module imports of hpcps and the line: anywhere, within functions and for types too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}:{node.lineno}: imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            top, _, rest = name.partition(".")
            # What `hpcps` itself defines, such as its version, is no package.
            if top == "hpcps" and (layer := rest.partition(".")[0]) in ORDER:
                yield layer, node.lineno


def edges():
    """Return, for each layer and each other one that it imports, where it does so."""
    found = defaultdict(list)
    for path, tree in modules().items():
        for layer, line in imported(tree, path):
            if layer != layer_of(path):
                found[layer_of(path), layer].append(f"{path.relative_to(ROOT.parent)}:{line}")
    return found


def module_name(path):
    """Return the dotted name of a module; that of a package for its `__init__`."""
    return ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")


def imports_within_packages():
    """Return the modules of the same package that each module imports, also within functions and for types, and where.

    `from hpcps.a.b import c` imports the module `hpcps.a.b.c` if there is one, else `hpcps.a.b`.
    """
    known = {module_name(path): path for path in modules()}
    found = {name: {} for name in known}
    for name, path in known.items():
        for node in ast.walk(modules()[path]):
            if isinstance(node, ast.ImportFrom):
                each = [f"{node.module}.{alias.name}" for alias in node.names]
                named = [full if full in known else node.module for full in each]
            elif isinstance(node, ast.Import):
                named = [alias.name for alias in node.names]
            else:
                continue
            for other in named:
                if other in known and other != name and layer_of(known[other]) == layer_of(path):
                    found[name].setdefault(other, f"{path.relative_to(ROOT.parent)}:{node.lineno} imports {other}")
    return found


def cycles(graph):
    """Return the sets of nodes that reach each other in a graph, by Tarjan's algorithm: those of more than one node."""
    order, lowest, stack, found = {}, {}, [], []

    def visit(node):
        order[node] = lowest[node] = len(order)
        stack.append(node)
        for other in graph[node]:
            if other not in order:
                visit(other)
                lowest[node] = min(lowest[node], lowest[other])
            elif other in stack:
                lowest[node] = min(lowest[node], order[other])
        if lowest[node] == order[node]:
            whole = set(stack[stack.index(node) :])
            del stack[stack.index(node) :]
            found.extend([whole] if len(whole) > 1 else [])

    for node in graph:
        if node not in order:
            visit(node)
    return found


def test_cycles_are_found():
    assert cycles({"a": ["b"], "b": ["c"], "c": ["a", "d"], "d": ["e"], "e": [], "f": ["d"]}) == [{"a", "b", "c"}]
    assert cycles({"a": ["b", "c"], "b": ["c"], "c": []}) == []


@pytest.mark.thorough
def test_no_modules_of_a_package_import_each_other_in_a_cycle():
    """Also not by way of others, within functions or for types: a reader can begin with those that import no other."""
    graph = imports_within_packages()
    found = [[graph[a][b] for a in sorted(cycle) for b in graph[a] if b in cycle] for cycle in cycles(graph)]
    assert not found, found


@pytest.mark.thorough
def test_every_package_is_a_layer():
    present = {layer_of(path) for path in modules()}
    assert present == set(ORDER)


@pytest.mark.thorough
def test_no_two_packages_import_each_other():
    found = edges()
    mutual = {pair: found[pair] for pair in found if pair[::-1] in found}
    assert not mutual


@pytest.mark.thorough
def test_imports_point_downward_only():
    """So there is no cycle of any length."""
    upward = {pair: places for pair, places in edges().items() if ORDER.index(pair[0]) < ORDER.index(pair[1])}
    assert not upward


def test_at_the_top_level_there_are_packages_and_little_else():
    files = {path.name for path in ROOT.iterdir() if path.is_file()}
    # Of the session; that of torch is a package.
    front_ends = {"jax.py", "keras.py", "mxnet.py", "numpy.py", "tensorflow.py"}
    assert files == {"__init__.py", "__main__.py", "errors.py", "inputs.py", "seeds.py", "py.typed"} | front_ends
    for folder in ROOT.iterdir():
        assert folder.is_file() or folder.name == "__pycache__" or (folder / "__init__.py").is_file()


def test_every_package_says_in_a_line_what_it_is():
    for path, tree in modules().items():
        if path.name == "__init__.py":
            line, _, rest = (ast.get_docstring(tree) or "").partition("\n")
            assert line.endswith("."), path
            assert not rest or rest.startswith("\n"), f"{path}: its first sentence takes more than a line"


def test_no_module_is_named_for_what_does_not_fit_elsewhere():
    names = {path.stem for path in modules()} | {path.parent.name for path in modules()}
    assert not names & {"util", "utils", "helper", "helpers", "common", "misc"}


def test_no_two_classes_have_the_same_name():
    classes = defaultdict(list)
    for path, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                classes[node.name].append(f"{path.relative_to(ROOT.parent)}:{node.lineno}")
    assert {name: places for name, places in classes.items() if len(places) > 1} == {}


def test_figures_are_named_in_experiment_files_only():
    """The code plots any experiment: it knows none by name."""
    named = re.compile(r"\bfig(ure)?s?[ _-]?[0-9]", re.IGNORECASE)
    files = [path for path in ROOT.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    texts = [path for path in files if path.suffix != ".gz"]
    found = [
        f"{path.relative_to(ROOT.parent)}: {line.strip()}"
        for path in texts
        for line in path.read_text().splitlines()
        if named.search(line)
    ]
    assert not found


LISTED = {
    "aggregation", "attacks", "compression", "data", "execution", "execution/replay", "execution/simulation",
    "execution/standby", "execution/sweep", "figures", "kvstore", "launch", "library", "numerics", "numerics/kernels",
    "protocol",
    "protocol/messages", "records", "records/trace", "registry", "roles", "roles/asynchronous", "roles/sync",
    "roles/update", "rules", "session", "spec", "spec/checks", "torch", "training", "training/pytorch", "transport",
    "transport/pslite", "transport/shared_memory",
}  # fmt: skip
"""The packages whose docstrings list their modules, because there are many or their names do not say enough."""


def listed_modules(text):
    """Return the names in the lines of a docstring that begin with "- `name`:"."""
    return re.findall(r"^- `([\w/]+)`: ", text, re.MULTILINE)


def test_lists_of_modules_name_the_modules_that_exist():
    lists = {
        str(path.parent.relative_to(ROOT)): listed_modules(ast.get_docstring(tree) or "")
        for path, tree in modules().items()
        if path.name == "__init__.py"
    }
    assert {name for name, modules in lists.items() if modules} == LISTED
    for name in LISTED:
        files = {path.stem for path in (ROOT / name).glob("*.py")} - {"__init__"}
        packages = {f"{path.parent.name}/" for path in (ROOT / name).glob("*/__init__.py")}
        assert len(set(lists[name])) == len(lists[name]), name
        assert set(lists[name]) == files | packages, name


@pytest.mark.thorough
def test_a_public_method_has_a_docstring_or_overrides_one_that_has():
    classes = {
        node.name: (path, node)
        for path in sorted(ROOT.rglob("*.py"))
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef)
    }

    @cache
    def documented(name):
        """Return whether each method of a class has a docstring; of a property, its getter, which comes first."""
        functions = (ast.FunctionDef, ast.AsyncFunctionDef)
        found = [each for each in classes[name][1].body if isinstance(each, functions)]
        return {each.name: bool(ast.get_docstring(each)) for each in reversed(found)}

    @cache
    def ancestors(name):
        nodes = [base.value if isinstance(base, ast.Subscript) else base for base in classes[name][1].bases]
        own = {getattr(node, "id", getattr(node, "attr", "")) for node in nodes} & classes.keys()
        return own.union(*map(ancestors, own))

    bare = [
        f"{path.relative_to(ROOT.parent)}: {name}.{method}"
        for name, (path, _) in classes.items()
        for method, good in documented(name).items()
        if not (good or name.startswith("_") or method.startswith("_"))
        if not any(documented(base).get(method) for base in ancestors(name))
    ]
    assert not bare
