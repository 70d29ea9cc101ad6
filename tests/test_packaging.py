"""The package: imports point one way, the light part stays light, and what is built works where it is installed."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

ARROWS = {
    "space": set(),
    "codegen": {"space"},
    "measure": {"space", "codegen"},
    "cost_model": {"space"},
    "heuristics": {"space", "cost_model", "codegen"},
    "problems": {"space"},
    "results": {"space"},
    "search": {"space", "codegen", "measure", "cost_model", "heuristics"},
    "tileseek": {"space", "codegen", "measure", "cost_model", "heuristics", "search", "problems", "results"},
}
"""What each folder may import of the others. Queries ask `codegen.plan`, which is pure Python, for the launch."""

HEAVY = ("numpy", "torch", "optuna", "sklearn", "scipy", "cuda", "pynvml")


def sources(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def imports(path: Path, folder: str) -> Iterator[tuple[int, str]]:
    """(line, folder) for each import of another folder of the project by the file."""
    depth = len(path.relative_to(ROOT / folder).parts)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "tileseek":
                    yield node.lineno, f"absolute {alias.name}"
        elif isinstance(node, ast.ImportFrom):
            module = (node.module or "").split(".")
            if node.level == 0 and module[0] == "tileseek":
                yield node.lineno, f"absolute {node.module}"
            # Folders lie beside each other under `tileseek`, whose own files are one level higher.
            outside = node.level == depth + (folder != "tileseek")
            if outside and folder != "tileseek":
                yield node.lineno, module[0] or node.names[0].name
            elif outside and module[0] in ARROWS:
                yield node.lineno, module[0]
            assert node.level <= depth + 1, f"{path}, line {node.lineno}: import from above the package"


@pytest.mark.parametrize("folder", list(ARROWS))
def test_arrows_point_one_way(folder: str) -> None:
    assert sources(folder)
    wrong = [
        f"{path.relative_to(ROOT)}, line {line}: {target}"
        for path in sources(folder)
        for line, target in imports(path, folder)
        if target != folder and target not in ARROWS[folder]
    ]
    assert not wrong


def test_every_folder_is_installed() -> None:
    setuptools = PROJECT["tool"]["setuptools"]
    inits = {path.parent.relative_to(ROOT) for folder in ARROWS for path in (ROOT / folder).rglob("__init__.py")}
    installed = {Path(name.replace("tileseek.", "", 1) if name in setuptools["package-dir"] else name.replace(".", "/"))
                 for name in setuptools["packages"]}  # fmt: skip
    assert installed == inits


def python(code: str) -> str:
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd="/", check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_import_is_light() -> None:
    loaded = python("import sys, tileseek; tileseek.Problem; print(*sys.modules)").split()
    assert not [name for name in loaded if name.split(".")[0] in (*HEAVY, "typer", "rich")]


def test_a_query_is_light_too() -> None:
    code = """
import sys, tileseek
problem = tileseek.Problem(m=64, n=512, k=256, dtype="bf16", layout="nt")
choice = tileseek.best_schedule(problem)
assert choice.expected_us > 0
print(*sys.modules)
"""
    assert not [name for name in python(code).split() if name.split(".")[0] in (*HEAVY, "typer", "rich")]


def test_names_of_the_public_interface() -> None:
    code = """
import tileseek
for name in tileseek.__all__:
    assert getattr(tileseek, name) is getattr(tileseek, name)
assert callable(tileseek.matmul)
try:
    tileseek.nothing
except AttributeError as error:
    print(error)
"""
    assert "no attribute 'nothing'" in python(code)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel made by way of the source distribution, so that both are complete."""
    out = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)],
        check=True,
        capture_output=True,
    )
    assert len(list(out.glob("*.tar.gz"))) == 1
    (found,) = out.glob("*.whl")
    return found


def test_the_wheel_is_complete(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        archive.extractall(tmp_path)
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"tileseek"}
    assert {f"tileseek/problems/{path.name}" for path in (ROOT / "problems").glob("*.csv")} <= names
    assert {f"tileseek/{path.relative_to(ROOT)}" for path in (ROOT / "results").glob("*/table.json")} <= names
    assert "tileseek/py.typed" in names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    for folder in ARROWS:
        for path in sources(folder):
            where = path.relative_to(ROOT) if folder == "tileseek" else Path("tileseek") / path.relative_to(ROOT)
            assert where.as_posix() in names

    code = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
import tileseek.problems
assert tileseek.__file__.startswith({str(tmp_path)!r}), tileseek.__file__
print(len(tileseek.problems.suite("headline")), tileseek.best_schedule(tileseek.Problem(64, 512, 256)).provenance)
"""
    assert python(code).startswith("25 ")
