"""A torch of another minor release is refused before its symbols are; doctor tells what is here."""

import pytest
import torch

import snug
from snug import _build_check


def test_the_same_minor_passes():
    _build_check.check("2.13.0", "2.13.0+cpu")
    _build_check.check("2.13.0", "2.13.1+cu130")
    _build_check.check(torch.__version__)


@pytest.mark.parametrize("running", ["2.12.1", "2.14.0a0+git1234", "3.13.0"])
def test_another_minor_says_what_to_do(running):
    with pytest.raises(ImportError, match="built with 2.13.0") as caught:
        _build_check.check("2.13.0", running)
    assert "torch==2.13.*" in str(caught.value) and "pip install" in str(caught.value) and running in str(caught.value)


def test_an_extension_that_is_not_built_is_told_of(tmp_path):
    _build_check.check_is_built(snug.__path__)
    with pytest.raises(ImportError, match="the extension has not been built for this Python: pip install"):
        _build_check.check_is_built([str(tmp_path)])


def test_doctor(capsys):
    assert snug.doctor()
    out = capsys.readouterr().out
    assert "bitwise the same gradients" in out and torch.__version__ in out


def test_the_package_asks_for_the_torch_that_it_is_built_for(monkeypatch):
    import importlib.util
    import pathlib

    path = pathlib.Path(__file__).parents[2] / "python" / "metadata" / "torch_requirement.py"
    spec = importlib.util.spec_from_file_location("torch_requirement", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    minor = ".".join(torch.__version__.split(".")[:2])
    monkeypatch.setenv("SNUG_LIBTORCH", str(pathlib.Path(torch.__file__).parent))
    assert module.dynamic_metadata("dependencies") == [f"torch=={minor}.*"]
    monkeypatch.setenv("SNUG_LIBTORCH", "/nowhere")
    with pytest.raises(RuntimeError, match="pip install torch"):
        module.dynamic_metadata("dependencies")
