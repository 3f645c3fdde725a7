"""Options of data sets and networks are of the type their signatures say, before any file is looked at."""

import pytest

from slomofast.bench.job import Job
from slomofast.bench.parts import check_options
from slomofast.core.errors import ConfigError
from slomofast.data import check_data, list_data, open_data
from slomofast.models import load_source

OPTIONS = [(info.name, option) for info in list_data() for option in info.options]
NUMBERS = {"size", "seed", "classes", "image_size", "subset"}


@pytest.mark.parametrize(("kind", "option"), OPTIONS)
def test_a_value_of_another_type_is_refused_by_name(kind: str, option: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{option} must be .*, got \{{'a': 1\}} \(dict\)"):
        check_data(kind, {option: {"a": 1}})


@pytest.mark.parametrize(("kind", "option"), [(kind, option) for kind, option in OPTIONS if option in NUMBERS])
def test_numbers_may_be_written_as_text_and_words_may_not(kind: str, option: str) -> None:
    assert check_data(kind, {option: "3"})[1] == {option: 3}
    for wrong in ("abc", True, 1.5, [1]):
        with pytest.raises(ConfigError, match=f"^{option} must be "):
            check_data(kind, {option: wrong})


def test_lists_may_be_written_with_commas() -> None:
    assert check_data("imagenet_c", {"severities": "1,3"})[1] == {"severities": (1, 3)}
    assert check_data("imagenet_c", {"severities": [1, 3]})[1] == {"severities": (1, 3)}
    assert (
        open_data("glyphs", size=20, domains="fog,snow").domains == open_data("glyphs", domains=["fog", "snow"]).domains
    )


def test_normalisation_of_a_network_may_be_written_with_commas() -> None:
    written = load_source("wrn_10_1", mean="0.5,0.4,0.3", std="0.2,0.2,0.2")
    assert written.mean.flatten().tolist() == pytest.approx([0.5, 0.4, 0.3])
    with pytest.raises(ConfigError, match=r"std must be a number \(float\), got 'x'"):
        load_source("wrn_10_1", mean="0.5,0.4,0.3", std="0.2,0.2,x")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"data": "glyfs"}, "unknown data set 'glyfs'; did you mean 'glyphs'"),
        ({"data_options": {"sise": 3}}, "unknown option of glyphs 'sise'; did you mean 'size'"),
        ({"data_options": {"size": "abc"}}, "size must be a number"),
        ({"source": "pac:x.npz"}, "unknown data set 'pac'; did you mean 'pack'"),
        ({"model": "wrn_41_2"}, "a WideResNet's depth"),
        ({"model": "glyps"}, "unknown model 'glyps'; did you mean 'glyphs'"),
        ({"model_options": {"classess": 3}}, "unknown option of a network 'classess'; did you mean 'classes'"),
        ({"model_options": {"classes": "ten"}}, "classes must be a number"),
        ({"model_options": {"classes": 1}}, "classes must be at least 2, got 1"),
        ({"model_options": {"mean": [0.5]}}, "mean and std come together"),
    ],
)
def test_a_job_is_checked_without_files(fields: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_options(Job("bn", **fields))
