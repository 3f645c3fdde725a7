"""The shape of the package: imports point one way, public names are frozen, importing stays light, examples run."""

import ast
import doctest
import importlib
import json
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import slomofast

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "slomofast"

# what each room may import of the others; `core` is open to all
ROOMS = {
    "core": set(),
    "losses": set(),
    "memory": set(),
    "voting": {"losses"},
    "augment": set(),
    "conditions": set(),
    "guard": set(),
    "methods": {"losses", "memory", "augment", "voting", "conditions"},
    "corruptions": set(),
    "data": {"corruptions"},
    "streams": {"corruptions", "data"},
    "models": set(),
    "metrics": set(),
    "bench": {
        "losses",
        "memory",
        "augment",
        "corruptions",
        "data",
        "streams",
        "models",
        "metrics",
        "methods",
        "report",
        "slomofast",
    },
    "report": {"metrics"},
    "testing": {"slomofast"},
}
# the public front door may look into rooms lazily; the command line sees everything
FREE = {"__init__", "cli"}


def _imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names = [node.module]
            if node.module == "slomofast":
                names = [f"slomofast.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            if name == "slomofast":
                found.add("slomofast")
            elif name.startswith("slomofast."):
                found.add(name.split(".")[1])
    return found


def test_imports_point_one_way() -> None:
    wrong = []
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        room = parts[0]
        if room in FREE:
            continue
        assert room in ROOMS, f"{path.name}: a room this test does not know"
        strangers = _imports(path) - ROOMS[room] - {room, "core"}
        wrong += [f"{'/'.join(parts)} imports {name}" for name in sorted(strangers)]
    assert not wrong, "\n".join(wrong)


def test_every_room_is_reached_by_this_test() -> None:
    rooms = {
        p.stem if p.is_file() else p.name for p in SOURCE.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()
    }
    assert rooms - FREE == set(ROOMS)


def test_import_needs_torch_and_numpy_alone() -> None:
    code = (
        "import sys, time, torch, numpy; before = set(sys.modules); start = time.perf_counter();"
        "import slomofast; slomofast.list_methods(); took = time.perf_counter() - start;"
        "import json; print(json.dumps([took, sorted({m.split('.')[0] for m in set(sys.modules) - before})]))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    took, modules = json.loads(out)
    heavy = {
        "PIL",
        "matplotlib",
        "typer",
        "rich",
        "plotly",
        "sklearn",
        "safetensors",
        "ray",
        "torchvision",
        "timm",
        "scipy",
    }
    assert not heavy & set(modules)
    assert took < 1.5


def test_public_names_are_frozen() -> None:
    frozen = json.loads((ROOT / "tests" / "public_names.json").read_text())
    assert sorted(slomofast.__all__) == frozen["slomofast"], "the public names changed: review, then edit the file"


def _modules() -> list[str]:
    names = []
    for module in pkgutil.walk_packages(slomofast.__path__, "slomofast."):
        if not module.name.endswith("__main__"):
            names.append(module.name)
    return names


@pytest.mark.parametrize("name", ["slomofast", *_modules()])
def test_all_resolves_and_examples_run(name: str) -> None:
    if name == "slomofast.core.fused_kernels":
        pytest.importorskip("triton")
    module = importlib.import_module(name)
    for public in getattr(module, "__all__", []):
        assert hasattr(module, public), f"{name}.__all__ lists {public!r}, which is not there"
    result = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert result.failed == 0


def _examples() -> list[tuple[str, str]]:
    found = []
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        blocks = re.findall(r"<!-- runs -->\n```python\n(.*?)```", page.read_text(), re.S)
        found += [(f"{page.relative_to(ROOT)}#{number}", code) for number, code in enumerate(blocks)]
    return found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("where", "code"), _examples(), ids=[where for where, _ in _examples()])
def test_examples_of_the_docs_run(where: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from slomofast.core.registry import _methods

    monkeypatch.chdir(tmp_path)
    slomofast.list_methods()  # discovery happens once; what it found must survive the clean-up below
    before = dict(_methods)
    try:
        scope: dict = {"__name__": "example"}
        exec(compile(code, where, "exec"), scope)
        assert len(scope) > 2, "an example that defines nothing shows nothing"
    finally:
        _methods.clear()
        _methods.update(before)


def test_links_of_the_docs_lead_somewhere() -> None:
    broken = []
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))):
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
            if not re.match(r"[a-z]+:", target) and not (page.parent / target).exists():
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert not broken, "\n".join(broken)


def test_methods_of_other_packages_are_found(tmp_path: Path) -> None:
    """A package with an entry point adds a method; a broken one warns and the rest loads."""
    package = tmp_path / "elsewhere.py"
    package.write_text(
        "import slomofast as sf\n"
        "from slomofast.core.params import copy_network\n"
        "@sf.register('elsewhere', paper='-', trains='nothing')\n"
        "class Elsewhere(sf.Adapter):\n"
        "    '''A method from another package.'''\n"
        "    def build(self, model):\n"
        "        self.student = copy_network(model)\n"
        "    def adapt(self, x):\n"
        "        return self.student(x)\n"
    )
    info = tmp_path / "elsewhere-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: elsewhere\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[slomofast.methods]\nelsewhere = elsewhere\nbroken = no_such_module\n")
    code = (
        "import warnings\n"
        "with warnings.catch_warnings(record=True) as seen:\n"
        "    warnings.simplefilter('always')\n"
        "    import slomofast as sf\n"
        "    assert 'elsewhere' in sf.list_methods() and 'tent' in sf.list_methods()\n"
        "assert any('broken' in str(w.message) for w in seen), [str(w.message) for w in seen]\n"
        "from slomofast.testing import check_method\n"
        "check_method('elsewhere', nets=('layer',))\n"
        "print('found')\n"
    )
    environment = {"PYTHONPATH": f"{tmp_path}:{ROOT / 'src'}", "PATH": "/usr/bin:/bin"}
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert out.stdout.strip() == "found", out.stderr[-2000:]
