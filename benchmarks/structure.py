"""How the code is built, in numbers: one column for each checkout, to hold one version against another.

    python benchmarks/structure.py [PATH ...] [--json FILE] [--grep PATTERN ...]

Counts are read from the syntax of src/agentmerge. Two are run: the seconds of `agentmerge --help`, and the calls from
`api.merge` to the arithmetic, by tracing a RAM+ merge of the shipped agents. What stays for a person to count is how
many files a new method, source or runner touches.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

COMPOUND = (ast.For, ast.AsyncFor, ast.While, ast.If, ast.With, ast.AsyncWith, ast.Try, ast.TryStar, ast.Match)
NUMBERS = (ast.Constant, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
MESSAGES = (
    r"\b(?:SENTENCE|EXPECTED) = re\.compile",
    r"\bre\.(?:search|match|split|findall)\([^#]*\b(?:text|message|error|str\(error\))\)",
    r"\bin str\((?:error|problem)\)",
    r"\bin hint\b",
    r"\b(?:text|message)\.(?:startswith|removeprefix)\((?!b['\"])",
)
"""Ways in which code takes its own messages apart."""
CHOOSING = r"\b(?:cpu\.supports|profiles\.supports|supports|kernels\.choose|choose)\((?!self)"
NEVER = "never"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", type=Path, nargs="*", default=[Path(__file__).parents[1]], help="checkouts")
    parser.add_argument("--grep", nargs="*", default=MESSAGES, help="how messages are taken apart, as regexes")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--trace", choices=["kernel", "definition"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.trace:
        print(json.dumps(traced(options.trace)))
        return
    columns = {str(path): measured(path.resolve(), options.grep) for path in options.paths}
    print(table(columns))
    if options.json:
        options.json.write_text(json.dumps(columns, indent=1) + "\n")


def table(columns: dict[str, dict[str, str]]) -> str:
    """Markdown."""
    names = list(columns)
    rows = [["", *names], ["---"] * (1 + len(names))]
    rows += [[row, *(columns[name][row] for name in names)] for row in columns[names[0]]]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def measured(path: Path, patterns: list[str]) -> dict[str, str]:
    """Every count of a checkout."""
    source = path / "src" / "agentmerge"
    texts = {str(file.relative_to(source)): file.read_text(encoding="utf-8") for file in sorted(source.rglob("*.py"))}
    trees = {name: ast.parse(text) for name, text in texts.items()}
    classes = {(name, node.name): node for name, tree in trees.items() for node in tree.body if is_class(node)}
    functions = [(name, node) for name, tree in trees.items() for node in ast.walk(tree) if isinstance(node, FUNCTIONS)]
    lines = {name: text.count("\n") for name, text in texts.items()}
    largest = max(lines, key=lambda name: lines[name])
    deepest = max(functions, key=lambda pair: depth(pair[1]))
    widest = max((pair for pair in functions if not pair[0].startswith("kernels/")), key=lambda p: parameters(p[1]))
    copies = copied(trees)
    plans = [len(methods(node)) for (_, name), node in classes.items() if name == "Plan"]
    protocol = next((name for name in ("Weights", "Opened") if any(key[1] == name for key in classes)), "")
    outside = {name: text for name, text in texts.items() if not name.startswith("kernels/")}
    return {
        "files": str(len(texts)),
        "largest file, lines": f"{lines[largest]} ({largest})",
        "methods of `Plan`": str(max(plans, default=0)),
        "hooks of `MergeMethod`": str(len(hooks(classes))),
        "members of a source protocol": f"{len(members(classes, protocol))} ({protocol})",
        "calls from `api.merge` to the arithmetic, kernel": calls(path, "kernel"),
        "calls from `api.merge` to the arithmetic, definition": calls(path, "definition"),
        "places that ask whether a kernel fits": str(found(outside, [CHOOSING])),
        "depth of the deepest function": f"{depth(deepest[1])} ({deepest[0]}: {deepest[1].name})",
        "most parameters, kernels aside": f"{parameters(widest[1])} ({widest[0]}: {widest[1].name})",
        "places that take a message apart": str(found(texts, patterns)),
        "constants that stand in several files": f"{len(copies)} ({', '.join(sorted(copies)) or 'none'})",
        "copies of one constant": str(max(map(len, copies.values()), default=1)),
        **readme(path, source),
        "`agentmerge --help`, seconds": f"{help_seconds(path):.3f}",
    }


def is_class(node: ast.AST) -> bool:
    return isinstance(node, ast.ClassDef)


def methods(node: Any) -> list[Any]:
    """The functions of a class."""
    return [item for item in node.body if isinstance(item, FUNCTIONS)]


def hooks(classes: dict[tuple[str, str], Any]) -> set[str]:
    """What a method may say of itself: public members of MergeMethod that are abstract or that a method overrides."""
    base = next(node for (_, name), node in classes.items() if name == "MergeMethod")
    overridden = {
        item.name if isinstance(item, FUNCTIONS) else ast.unparse(item.target)
        for (file, name), node in classes.items()
        if file.startswith("methods/") and name != "MergeMethod"
        for item in node.body
        if isinstance(item, (*FUNCTIONS, ast.AnnAssign))
    }
    public = [node for node in methods(base) if not node.name.startswith("_") and not decorated(node, "classmethod")]
    return {node.name for node in public if node.name in overridden or decorated(node, "abstractmethod")}


def decorated(node: Any, name: str) -> bool:
    return any(ast.unparse(decorator) == name for decorator in node.decorator_list)


def members(classes: dict[tuple[str, str], Any], name: str) -> set[str]:
    """The names of a protocol, inherited ones included."""
    node = next((node for key, node in classes.items() if key[1] == name), None)
    if node is None:
        return set()
    own = {item.name for item in methods(node)}
    own |= {ast.unparse(item.target) for item in node.body if isinstance(item, ast.AnnAssign)}
    return own.union(*(members(classes, ast.unparse(base)) for base in node.bases))


def depth(function: Any) -> int:
    """How deep statements lie within each other in the syntax tree, where an `elif` lies within its `if`.

    A function within a function starts anew.
    """
    return max((_depth(statement) for statement in function.body), default=0)


def _depth(node: ast.AST) -> int:
    if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
        return 0
    inner = max(map(_depth, ast.iter_child_nodes(node)), default=0)
    return inner + isinstance(node, COMPOUND)


def parameters(function: Any) -> int:
    arguments = function.args
    names = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return len([name for name in names if name not in ("self", "cls")])


def found(texts: dict[str, str], patterns: list[str] | tuple[str, ...]) -> int:
    """Lines of code that one of the patterns fits."""
    lines = (line for text in texts.values() for line in text.splitlines())
    code = (line for line in lines if not line.lstrip().startswith(("#", "def ")))
    return sum(any(re.search(pattern, line) for pattern in patterns) for line in code)


def copied(trees: dict[str, ast.Module]) -> dict[str, list[str]]:
    """Constants of one name and one value in several files: the files by the name."""
    places: dict[tuple[str, str], list[str]] = {}
    for file, tree in trees.items():
        for name, value in constants(tree):
            places.setdefault((name, value), []).append(file)
    return {name: files for (name, _), files in places.items() if len(files) > 1}


def constants(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """NAME = number or text, also as np.uint64(number) and 1 << number."""
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        value = getattr(node, "value", None)
        if len(targets) != 1 or not isinstance(targets[0], ast.Name) or not targets[0].id.isupper() or value is None:
            continue
        while isinstance(value, ast.Call) and len(value.args) == 1 and ast.unparse(value.func) != "TypeVar":
            value = value.args[0]
        if all(isinstance(part, NUMBERS) for part in ast.walk(value)):
            yield targets[0].id.lstrip("_"), ast.unparse(value)


def readme(path: Path, source: Path) -> dict[str, str]:
    text = (path / "README.md").read_text(encoding="utf-8")
    rooms = sorted(folder.parent.name for folder in source.glob("*/__init__.py"))
    named = [room for room in rooms if re.search(rf"\b{room}/", text)]
    return {
        "README, words": str(len(text.split())),
        "README, rooms of the tree that it names": f"{len(named)} of {len(rooms)}",
    }


def help_seconds(path: Path, repeat: int = 5) -> float:
    """The median, after one run that does not count."""
    command = [sys.executable, "-c", "import sys; sys.argv[1:] = ['--help']; from agentmerge.cli import main; main()"]
    seconds = []
    for _ in range(repeat + 1):
        before = time.perf_counter()
        subprocess.run(command, env=environment(path), stdout=subprocess.DEVNULL, check=True)
        seconds.append(time.perf_counter() - before)
    return statistics.median(seconds[1:])


def environment(path: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(path / "src")}


def calls(path: Path, kind: str) -> str:
    """How many functions of the package, in how many files, stand between `api.merge` and the first line of it."""
    command = [sys.executable, __file__, "--trace", kind]
    done = subprocess.run(command, env=environment(path), capture_output=True, text=True, check=False)
    if done.returncode:
        return f"failed: {done.stderr.strip().splitlines()[-1]}"
    chain = json.loads(done.stdout.splitlines()[-1])
    return f"{len(chain)} in {len({file for file, _ in chain})} files" if chain else NEVER


def traced(kind: str) -> list[tuple[str, str]]:
    """File and name of every call from `api.merge` to the kernel, or to the definition, that merges; [] for none."""
    import agentmerge
    from agentmerge import api

    root = str(Path(agentmerge.__file__).parent) + os.sep
    room = {"kernel": "kernels" + os.sep, "definition": "methods" + os.sep}[kind]
    chains: list[list[tuple[str, str]]] = []
    if kind == "definition":
        switch_kernels_off()

    def chain(frame: Any) -> list[tuple[str, str]]:
        names: list[tuple[str, str]] = []
        while frame is not None:
            code = frame.f_code
            if code.co_filename.startswith(root) and not code.co_name.startswith("<"):
                names.append((code.co_filename.removeprefix(root), code.co_name))
            frame = frame.f_back
        names = [*getattr(threading.current_thread(), "chain", []), *reversed(names)]
        return names[names.index(("api.py", "merge")) :] if ("api.py", "merge") in names else names

    def profile(frame: Any, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_name == "merge" and code.co_filename.startswith(root + room):
            chains.append(chain(frame))

    start = threading.Thread.start

    def start_with_chain(thread: threading.Thread) -> None:
        thread.chain = chain(sys._getframe())  # type: ignore[attr-defined]
        start(thread)

    threading.Thread.start = start_with_chain  # type: ignore[method-assign]
    threading.setprofile(profile)
    agents = Path(root) / "demo" / "agents"
    recipe = {"base": str(agents / "base"), "method": "ram_plus"}
    recipe["agents"] = {name: str(agents / name) for name in ("code", "memory", "tool")}  # type: ignore[assignment]
    with tempfile.TemporaryDirectory() as scratch:
        sys.setprofile(profile)
        api.merge(recipe, Path(scratch) / "out")
        sys.setprofile(None)
    return chains[0] if chains else []


def switch_kernels_off() -> None:
    """In whichever place this version asks whether a kernel fits."""
    from importlib import import_module

    for module, name, value in (("kernels", "choose", None), ("kernels.cpu", "supports", False)):
        place = import_module(f"agentmerge.{module}")
        if hasattr(place, name):
            setattr(place, name, lambda *_, value=value, **__: value)


if __name__ == "__main__":
    main()
