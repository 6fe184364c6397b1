"""Plugin files: Python files beside an experiment file that define components.

A plugin is one file. If a run uses a plugin, the run id includes the text of the file. The run's folder has a copy of
the text, and every process executes this copy.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType

from hpcps.errors import InputError, SpecError
from hpcps.inputs import read_text
from hpcps.registry.components import Entry, Origin, Plugin, Registry, extend, itself, sha256
from hpcps.registry.config import Config
from hpcps.registry.kinds import KINDS, ComponentKind, failure_of, faults, line_in
from hpcps.registry.trial import trouble

LARGEST = 1 << 20
"""The largest plugin file, in bytes; its text is in every run's plan and folder."""


class PluginError(SpecError):
    """A plugin file cannot be used; the message begins with the file and line."""


def read_plugin(path: Path) -> str:
    """Read a plugin file.

    Raises:
        PluginError: it cannot be read, or it is not a Python source file of reasonable size.
    """
    if path.suffix != ".py":
        raise PluginError(f"{path}: a plugin is a Python file, whose name ends in .py")
    try:
        return read_text(path, LARGEST)
    except InputError as error:
        raise PluginError(str(error)) from error


def load(text: str, path: Path, *, trial: bool = False) -> Plugin:
    """Execute the text of a plugin file and return the components that it defines.

    Args:
        text: the text.
        path: the file, for messages and tracebacks; imports of other files in its folder are rejected.
        trial: whether to execute it in a child process first, unless this process has executed the same text before.

    Raises:
        PluginError: it cannot be executed, defines no component or a component that is not usable; lists all faults.
    """
    tree = _parse(text, path)
    _reject_local_imports(tree, path)
    untried = trial and _module_name(text, path) not in sys.modules
    if untried and (found := trouble(path, partial(_run, text, path))):
        raise PluginError(f"{path}:{found.line}: {found.what}")
    module = _execute(text, path)
    lines = {node.name: node.lineno for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    origin = Origin(f"plugin {path.name}", f"sha256 {sha256(text)}")
    entries, problems = [], []
    for kind, component in _components(module):
        place = f"{path}:{lines.get(component.__name__, 1)}: {component.__name__}"
        problems += [f"{place} is not a usable {kind.noun}: {fault}" for fault in faults(kind, component)]
        entries.append(Entry(kind, kind.name_of(component), origin, partial(itself, component)))
    if problems:
        raise PluginError("\n".join(problems))
    if not entries:
        bases = ", ".join(kind.base.partition(":")[2] for kind in KINDS.values())
        raise PluginError(f"{path}:1: it defines no component: derive a class from one of {bases}")
    return Plugin(path.name, text, tuple(entries))


def clashes(plugins: Sequence[Plugin]) -> list[str]:
    """Return a message for each component of a plugin whose name another component already has."""
    installed = Registry()
    owners: dict[tuple[str, str], str] = {}
    files = [plugin.file for plugin in plugins]
    found = [f"two plugins are called {file}: rename one" for file in dict.fromkeys(files) if files.count(file) > 1]
    for plugin in {plugin.file: plugin for plugin in plugins}.values():
        for entry in plugin.entries:
            key = (entry.kind.name, entry.name)
            components = installed.of(entry.kind.name)
            other = owners.get(key) or (components.entry(entry.name).origin.words if entry.name in components else "")
            if other:
                found.append(
                    f"{plugin.file} defines the {entry.kind.noun} {entry.name!r}, which is also {other}: "
                    f"choose another {entry.kind.tag}"
                )
            owners.setdefault(key, f"plugin {plugin.file}")
    return found


def load_plugins(*files: str | Path) -> tuple[str, ...]:
    """Make the components of plugin files available by name, as in `registry.rules`, for this session.

    An experiment does not see them unless it names the files under `plugins`.

    Args:
        files: the files; relative paths start from the working directory. A file that has changed is loaded again.

    Returns:
        The names of the components that the files define.

    Raises:
        PluginError: a file cannot be used, or a name is already taken.
    """
    plugins = read_plugins(map(Path, files))
    extend(plugins)
    return tuple(entry.name for plugin in plugins for entry in plugin.entries)


def read_plugins(files: Iterable[Path]) -> list[Plugin]:
    """Return the plugins in files.

    Raises:
        PluginError: a file cannot be used, or a name is already taken.
    """
    plugins = [load(read_plugin(path), path, trial=True) for path in files]
    if found := clashes(plugins):
        raise PluginError("\n".join(found))
    return plugins


def registry_of(texts: Iterable[tuple[str, str]], folder: Path) -> Registry:
    """Execute the plugins that a plan or a run's folder holds and return a registry with their components.

    Args:
        texts: the file name and the text of each plugin.
        folder: the folder with copies of the files, for tracebacks.

    Raises:
        PluginError: one of them cannot be executed here.
    """
    return Registry([load(text, folder / file) for file, text in dict.fromkeys(texts)])


def _parse(text: str, path: Path) -> ast.Module:
    try:
        return ast.parse(text, str(path))
    except SyntaxError as error:
        raise PluginError(f"{path}:{error.lineno or 1}: not valid Python: {error.msg}") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise PluginError(f"{path}:1: not valid Python: {error}") from error


def _reject_local_imports(tree: ast.Module, path: Path) -> None:
    """Reject imports of files beside the plugin, because the experiment carries only the plugin itself."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        names = [alias.name for alias in node.names]
        if isinstance(node, ast.ImportFrom):
            names = ["." * node.level + (node.module or "")]
        for name in names:
            top = name.partition(".")[0]
            beside = top and ((path.parent / f"{top}.py").is_file() or (path.parent / top / "__init__.py").is_file())
            if not top or (beside and not _installed(top, path.parent)):
                raise PluginError(
                    f"{path}:{node.lineno}: it imports {name}, a file beside it, which other hosts do not get: "
                    "a plugin is one file; put the code into it, or install a package with the code"
                )


def _installed(top: str, folder: Path) -> bool:
    """Tell whether a module is outside of this folder, or is hpcps, which every host has."""
    if top == "hpcps" or top in sys.builtin_module_names or top in sys.stdlib_module_names:
        return True
    spec = importlib.util.find_spec(top)
    return spec is not None and (spec.origin is None or folder.resolve() not in Path(spec.origin).resolve().parents)


def _module_name(text: str, path: Path) -> str:
    return f"hpcps_plugin_{path.stem}_{sha256(text)[:12]}"


def _execute(text: str, path: Path) -> ModuleType:
    name = _module_name(text, path)
    if name in sys.modules:
        return sys.modules[name]
    try:
        return _run(text, path)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, KeyboardInterrupt):
            raise
        raise PluginError(f"{path}:{line_in(str(path), error) or 1}: {failure_of(error)}") from error


def _run(text: str, path: Path) -> ModuleType:
    module = ModuleType(_module_name(text, path))
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # pydantic resolves annotations there
    exec(compile(text, str(path), "exec"), module.__dict__)
    return module


def _components(module: ModuleType) -> list[tuple[ComponentKind, type[Config]]]:
    """Return the component classes that a module itself defines, in its order, without those named `_…`."""
    own = [
        value
        for name, value in vars(module).items()
        if isinstance(value, type) and value.__module__ == module.__name__ and not name.startswith("_")
    ]
    return [(kind, value) for value in own for kind in KINDS.values() if issubclass(value, kind.base_class())]
