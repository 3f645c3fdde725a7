"""What the base class promises beyond the contract checks."""

import shutil
import sys
import warnings
from collections import OrderedDict
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import slomofast as sf
from slomofast.core.adapter import Runtime
from slomofast.core.norms import TestTimeNorm, norm_kinds, norm_parameters, set_statistics
from slomofast.core.optim import FlatOptimizer
from slomofast.core.params import copy_network, ema_update, flatten, pull_towards, restore, trainable
from slomofast.core.registry import describe
from slomofast.core.rng import Rng
from slomofast.testing import CHECKS, batches, check_method, make, tiny_net


def test_unknown_names_get_the_nearest() -> None:
    with pytest.raises(sf.ConfigError, match="did you mean 'slomo_fast"):
        sf.adapt(tiny_net(), "slomofast")
    with pytest.raises(sf.ConfigError, match="did you mean 'queue_size'"):
        sf.adapt(tiny_net(), "slomo_fast", queue_sise=3)
    with pytest.raises(sf.ConfigError, match=r"preset.*'cifer'.*did you mean 'cifar'"):
        sf.adapt(tiny_net(), "tent", preset="cifer")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": -1.0}, "lr must be at least 0, got -1"),
        ({"lr": float("nan")}, "lr must be a finite number"),
        ({"queue_size": 0}, "queue_size must be at least 1"),
        ({"queue_size": 2.5}, "queue_size must be int, got 2.5"),
        ({"queue_size": True}, "queue_size must be int"),
        ({"fast_momentum": 1.5}, "at most 1"),
        ({"members": ("student", "teacher")}, "value of members 'teacher'"),
        ({"members": ()}, "at least one"),
        ({"consistency": ("fast", "fast")}, "each choice once"),
        ({"select": "some"}, "value of select 'some'"),
        ({"optimizer": "lion"}, "value of optimizer"),
        ({"entropy_threshold": 0.0}, "greater than 0"),
    ],
)
def test_bad_options_name_value_and_range(options: dict, message: str) -> None:
    with pytest.raises(sf.ConfigError, match=message):
        sf.adapt(tiny_net(), "slomo_fast", **options)


@pytest.mark.parametrize("runtime", [{"precision": "fp8"}, {"check_input": "never"}, {"seed": 1.5}])
def test_bad_runtime_options(runtime: dict) -> None:
    with pytest.raises(sf.ConfigError, match=next(iter(runtime))):
        sf.adapt(tiny_net(), "tent", **runtime)


def test_options_from_text() -> None:
    config = sf.describe("slomo_fast").adapter.Config
    texts = {"lr": "1e-2", "members": "fast, slow", "calibrate": "no", "queue_size": "7"}
    parsed = config.parse(texts)
    assert parsed == {"lr": 0.01, "members": ("fast", "slow"), "calibrate": False, "queue_size": 7}
    with pytest.raises(sf.ConfigError, match="queue_size must be a number"):
        config.parse({"queue_size": "many"})
    with pytest.raises(sf.ConfigError, match="true or false"):
        config.parse({"calibrate": "perhaps"})


def test_presets_are_joined_by_a_plus() -> None:
    config = sf.describe("eata").adapter.Config
    both = config.for_("imagenet+source_free")
    assert (both.fisher, both.lr, both.fisher_weight) == ("stream", 2.5e-4, 2000.0)
    assert config.for_("source_free+imagenet", lr=0.5) == config.for_("imagenet+source_free", lr=0.5)
    with pytest.raises(sf.ConfigError, match=r"preset.*'sorce_free'.*did you mean 'source_free'"):
        config.for_("imagenet+sorce_free")


def test_a_hundred_classes_have_values_of_their_own() -> None:
    cotta, tent = (sf.describe(name).adapter.Config for name in ("cotta", "tent"))
    assert (cotta.for_("cifar").threshold, cotta.for_("cifar100").threshold) == (0.92, 0.72)
    assert tent.for_("cifar100") == tent.for_("cifar") == tent()


def test_deferred_check_reports_later_and_learns_nothing() -> None:
    adapter = make("tent", tiny_net(), check_input="deferred")
    x, y = batches(2)
    adapter(x)
    before = {k: v.clone() for k, v in adapter.student.state_dict().items()}
    bad = y.clone()
    bad[0, 0, 0, 0] = float("nan")
    with pytest.warns(UserWarning, match="was not finite"):
        adapter(bad)
    assert all(torch.equal(before[k], v) for k, v in adapter.student.state_dict().items())
    with pytest.raises(sf.InputError, match="held NaN or Inf"):
        adapter(y)
    assert torch.isfinite(adapter(y)).all()


def test_source_methods_ask_for_source(tmp_path: Path) -> None:
    class Needy(sf.Adapter):
        """Needs a mean of the source."""

        def build(self, model):  # type: ignore[no-untyped-def]
            self.student = copy_network(model)
            self.register_buffer("mean", torch.zeros(3))

        def learn_source(self, loader):  # type: ignore[no-untyped-def]
            self.mean.copy_(torch.cat([x.mean((2, 3)) for x, _ in loader]).mean(0))

        def adapt(self, x):  # type: ignore[no-untyped-def]
            return self.student(x)

    from slomofast.core.registry import _methods

    sf.register("needy_test", paper="-", trains="nothing", needs_source=True)(Needy)
    try:
        x = batches(2)
        with pytest.raises(sf.ConfigError, match="fit_source"):
            sf.adapt(tiny_net(), "needy_test")(x[0])
        with pytest.raises(sf.ConfigError, match="empty"):
            sf.adapt(tiny_net(), "needy_test").fit_source([])
        adapter = sf.adapt(tiny_net(), "needy_test").fit_source((b, torch.zeros(len(b))) for b in x)
        expected = torch.cat([b.mean((2, 3)) for b in x]).mean(0)
        torch.testing.assert_close(adapter.mean, expected)
        adapter(x[0])
        adapter.reset()
        torch.testing.assert_close(adapter.mean, expected)
        adapter(x[0])
        adapter.save(tmp_path / "needy.pt")
        torch.testing.assert_close(sf.load(tmp_path / "needy.pt", tiny_net()).mean, expected)
        with pytest.raises(sf.ConfigError, match="registered twice"):
            sf.register("tent", paper="-", trains="nothing")(Needy)
    finally:
        _methods.pop("needy_test")
    with pytest.raises(sf.ConfigError, match="takes nothing from source"):
        sf.adapt(tiny_net(), "tent").fit_source([(x[0], torch.zeros(16))])


def test_contract_checks_catch_a_broken_method() -> None:
    from slomofast.core.registry import _methods

    class Forgetful(sf.Adapter):
        """Keeps state where nobody can save it."""

        def build(self, model):  # type: ignore[no-untyped-def]
            self.student = copy_network(model)
            self.hidden = 0

        def adapt(self, x):  # type: ignore[no-untyped-def]
            self.hidden += 1
            return self.student(x) + self.hidden

    sf.register("forgetful_test", paper="-", trains="nothing")(Forgetful)
    try:
        with pytest.raises(AssertionError, match="forgetful_test breaks 'reset'"):
            check_method("forgetful_test", nets=("batch",))
    finally:
        _methods.pop("forgetful_test")


def test_contract_checks_catch_a_method_that_grows() -> None:
    from slomofast.core.registry import _methods

    class Collector(sf.Adapter):
        """Keeps every batch it has seen."""

        def build(self, model):  # type: ignore[no-untyped-def]
            self.student, self.seen = copy_network(model), []

        def adapt(self, x):  # type: ignore[no-untyped-def]
            self.seen.append(x.clone())
            return self.student(x)

    sf.register("collector_test", paper="-", trains="nothing")(Collector)
    try:
        with pytest.raises(AssertionError, match="8 tensors more after 8 further steps"):
            CHECKS["steady"]("collector_test", "batch")
    finally:
        _methods.pop("collector_test")


def test_ema_pull_and_restore() -> None:
    net = tiny_net()
    teacher, student = copy_network(net), copy_network(net, train="all")
    with torch.no_grad():
        for p in student.parameters():
            p += 1.0
    old = flatten(list(teacher.parameters()))
    ema_update(teacher, student, 0.9)
    torch.testing.assert_close(flatten(list(teacher.parameters())), old + 0.1, rtol=1e-4, atol=1e-5)
    pull_towards(list(student.parameters()), old, 0.25)
    torch.testing.assert_close(flatten(list(student.parameters())), old + 0.75, rtol=1e-4, atol=1e-5)
    restore(trainable(student), old, 0.3, Rng(0, torch.device("cpu")))
    back = (flatten(list(student.parameters())) == old).float().mean()
    assert 0.2 < float(back) < 0.4
    restore(trainable(student), old, 1.0, Rng(0, torch.device("cpu")))
    assert torch.equal(flatten(list(student.parameters())), old)


def test_statistics_of_test_time_norm() -> None:
    torch.manual_seed(0)
    layer = torch.nn.BatchNorm2d(3)
    layer.running_mean.uniform_()  # type: ignore[union-attr]
    layer.running_var.uniform_(0.5, 2)  # type: ignore[union-attr]
    x = torch.randn(8, 3, 4, 4) * 2 + 1
    mean, biased, unbiased = x.mean((0, 2, 3)), x.var((0, 2, 3), unbiased=False), x.var((0, 2, 3))

    def normal(m: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return (x - m[:, None, None]) / (v[:, None, None] + layer.eps).sqrt()

    source_mean, source_var = layer.running_mean.clone(), layer.running_var.clone()  # type: ignore[union-attr]
    torch.testing.assert_close(TestTimeNorm(layer, "batch")(x), normal(mean, biased), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(TestTimeNorm(layer, "source")(x), normal(source_mean, source_var), rtol=1e-4, atol=1e-4)
    mixed = normal(0.7 * source_mean + 0.3 * mean, 0.7 * source_var + 0.3 * unbiased)
    torch.testing.assert_close(TestTimeNorm(layer, "blend", 0.3)(x), mixed, rtol=1e-4, atol=1e-4)
    adapter = sf.adapt(
        torch.nn.Sequential(layer, torch.nn.Flatten(), torch.nn.Linear(48, 2)), "bn", statistics="ema", alpha=0.3
    )
    adapter(x)
    norm = next(m for m in adapter.modules() if isinstance(m, TestTimeNorm))
    torch.testing.assert_close(norm.running_mean, 0.7 * source_mean + 0.3 * mean)
    torch.testing.assert_close(norm.running_var, 0.7 * source_var + 0.3 * unbiased)
    lone = torch.randn(1, 3, 1, 1)
    expected = (lone - source_mean[:, None, None]) / (source_var[:, None, None] + layer.eps).sqrt()
    torch.testing.assert_close(TestTimeNorm(layer, "batch")(lone), expected, rtol=1e-4, atol=1e-4)


def test_norm_layers_are_found_by_kind() -> None:
    assert [norm_kinds(tiny_net(kind)) for kind in ("batch", "group", "layer")] == [{"batch"}, {"group"}, {"layer"}]
    assert len(norm_parameters(tiny_net("layer"))) == 4

    class MyRMSNorm(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(3))

    assert len(norm_parameters(torch.nn.Sequential(MyRMSNorm(), torch.nn.Linear(3, 3)))) == 1
    changed = set_statistics(tiny_net("batch"), "source")
    assert norm_kinds(changed) == {"batch"} and len(norm_parameters(changed)) == 4


@pytest.mark.parametrize("method", ["tent", "slomo_fast_star"])
def test_channels_last_agrees(method: str) -> None:
    reference, fast = make(method, tiny_net()), make(method, tiny_net(), channels_last=True)
    for x in batches(3):
        torch.testing.assert_close(fast(x), reference(x), rtol=1e-3, atol=1e-3)


@pytest.mark.skipif(
    shutil.which("gcc") is None and shutil.which("clang") is None, reason="torch.compile needs a compiler"
)
def test_compiled_networks_agree_and_keep_their_state_names(tmp_path: Path) -> None:
    reference, fast = make("tent", tiny_net("layer")), make("tent", tiny_net("layer"), compile=True)
    for x in batches(3):
        torch.testing.assert_close(fast(x), reference(x), rtol=1e-3, atol=1e-3)
    assert list(fast.state_dict()) == list(reference.state_dict())
    fast.save(tmp_path / "compiled.pt")
    again = sf.load(tmp_path / "compiled.pt", tiny_net("layer"))
    torch.testing.assert_close(again(x), reference(x), rtol=1e-3, atol=1e-3)


def test_every_adapter_of_a_process_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch stops compiling a function after eight situations, unless it is given more room."""
    from torch._dynamo import config
    from torch._dynamo.utils import counters

    compile_now = torch.nn.Module.compile
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self: compile_now(self, backend="eager"))
    torch.compiler.reset()
    graphs = []
    with config.patch(recompile_limit=8):  # monkeypatch would take the setting away when it puts it back
        for number in range(4):
            counters.clear()
            how = {"precision": ("fp32", "bf16")[number % 2], "channels_last": number > 1}
            make("slomo_fast_star", tiny_net(), compile=True, **how)(batches(1)[0])
            graphs.append(counters["stats"]["unique_graphs"])
    torch.compiler.reset()
    assert all(graphs), graphs


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(("precision", "bound"), [("fp32", 2e-2), ("bf16", 0.5)])
def test_compiled_networks_agree_on_the_gpu(precision: str, bound: float) -> None:
    """Logits of five steps, which are of the order of ten, with and without the compiler."""
    network = sf.load_source("glyphs").cuda()
    reference, fast = (
        sf.adapt(network, "slomo_fast_star", precision=precision, channels_last=True, compile=on)
        for on in (False, True)
    )
    stream = sf.stream("continual", sf.open_data("glyphs", device="cuda"), batch_size=100, images_per_domain=500)
    apart = [float((fast(batch.images) - reference(batch.images)).abs().max()) for batch in islice(stream, 5)]
    print(precision, [f"{value:.1e}" for value in apart])
    assert 0 < max(apart) < bound  # the same to the bit would mean that nothing was compiled


def test_describe_tells_the_facts() -> None:
    info = sf.describe("slomo_fast_star")
    assert info.trains == "all parameters" and not info.needs_source and info.paper == "arXiv:2511.18468"
    names = {item["name"] for item in info.options}
    assert {"consistency", "members", "select", "queue_size", "fast_momentum", "restore", "lr"} <= names
    assert "paper" in info.presets


def test_figures_are_those_of_their_step() -> None:
    adapter = sf.adapt(tiny_net(), "sar", reset_below=0.0)
    kept = []
    for x in batches(4):
        adapter(x)
        kept.append(adapter.logged["running_loss"])
    assert len({float(value) for value in kept}) > 1  # a buffer that moved on would say the same four times
    adapter = sf.adapt(tiny_net(), "rotta", update_every=100)
    adapter(batches(1)[0])
    adapter.logged["loss"] = torch.tensor(1.0)
    adapter(batches(1)[0])
    assert "loss" not in adapter.logged  # nothing was learned in this step


@pytest.mark.parametrize("seed", [2**70, -(2**64)])
def test_a_seed_that_no_generator_takes_is_refused(seed: int) -> None:
    with pytest.raises(sf.ConfigError, match="seed must be smaller"):
        sf.adapt(tiny_net(), "tent", seed=seed)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ((torch.rand(4, 3, 12, 12),), r"pairs \(images, labels\)"),
        ((torch.rand(4, 3, 12, 12), [0, 1, 2, 3]), r"got \['Tensor', 'list'\]"),
        ((torch.rand(4, 3, 12, 12), torch.arange(3)), "4 images and 3 labels"),
    ],
)
def test_source_batches_of_another_form_are_refused(batch: tuple, message: str) -> None:
    with pytest.raises(sf.InputError, match=message):
        sf.adapt(tiny_net(), "santa").fit_source([batch])


@pytest.mark.filterwarnings("error:.*was not finite")
def test_a_skipped_step_is_told_when_it_happens() -> None:
    from slomofast.core.registry import _methods

    class Warming(sf.describe("tent").adapter):  # type: ignore[misc]
        """Takes a step of infinite loss on source images."""

        def learn_source(self, loader):  # type: ignore[no-untyped-def]
            for x, _ in loader:
                self.update(self.student(x).sum() * float("inf"))

    sf.register("warming_test", paper="-", trains="norm layers")(Warming)
    try:
        adapter = sf.adapt(tiny_net(), "warming_test")
        with pytest.warns(UserWarning, match="a step of fit_source was not finite"):
            adapter.fit_source([(x, torch.zeros(len(x))) for x in batches(1)])
        adapter(batches(1)[0])
        assert adapter.skipped == 1
    finally:
        _methods.pop("warming_test")


def test_moving_before_the_first_batch_moves_a_copy_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    net = tiny_net()
    adapter = sf.adapt(net, "tent")
    with pytest.raises(RuntimeError):  # no generator lives there
        adapter.to("meta")
    assert adapter.device.type == "cpu"
    monkeypatch.setattr(Rng, "moved", lambda self, device: self)
    torch.nn.ModuleList([adapter]).to("meta")
    assert adapter.device.type == "meta" and next(net.parameters()).device.type == "cpu"
    assert {p.device.type for p in adapter._waiting[0].parameters()} == {"meta"}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("built", [False, True])
def test_an_adapter_moved_to_the_gpu_is_as_one_made_there(built: bool) -> None:
    first, second = batches(2)
    adapter, there = sf.adapt(tiny_net(), "cotta"), sf.adapt(tiny_net().cuda(), "cotta")
    if built:
        adapter.prepare(first)
    adapter.cuda()
    assert adapter.device == there.device == adapter.rng.device_name
    for x in (first, second):
        torch.testing.assert_close(adapter(x), there(x), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("built", [False, True])
def test_weights_stay_in_fp32(built: bool) -> None:
    adapter, x = sf.adapt(tiny_net(), "tent"), batches(1)[0]
    if built:
        adapter.prepare(x)
    for change in (adapter.half, adapter.double, adapter.bfloat16, lambda: adapter.to(torch.float16)):
        with pytest.raises(sf.ConfigError, match=r"stay in fp32.*precision='bf16'"):
            change()
    adapter.float().to("cpu").to(memory_format=torch.channels_last).share_memory()
    torch.testing.assert_close(adapter(x), sf.adapt(tiny_net(), "tent")(x))


def test_a_norm_layer_in_several_places_is_replaced_in_all_of_them() -> None:
    shared, lone = torch.nn.BatchNorm2d(3), torch.nn.BatchNorm2d(3)
    inner = torch.nn.Sequential(torch.nn.Conv2d(3, 3, 1), shared, lone)
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 3, 1), shared, torch.nn.Conv2d(3, 3, 1), shared, inner, inner)
    changed = copy_network(net)
    kinds = [type(m).__name__ for m in changed]
    assert kinds == ["Conv2d", "TestTimeNorm", "Conv2d", "TestTimeNorm", "Sequential", "Sequential"]
    assert changed[1] is changed[3] is changed[4][1] is not changed[4][2]
    assert isinstance(changed[4][2], TestTimeNorm) and changed[4] is changed[5]
    again = set_statistics(changed, "source")
    assert {m.statistics for m in again.modules() if isinstance(m, TestTimeNorm)} == {"source"}


def test_an_adapter_has_no_training_mode() -> None:
    net = torch.nn.Sequential(tiny_net("group"), torch.nn.Dropout(0.5), torch.nn.Linear(4, 4)).train()
    adapter, x = sf.adapt(net, "tent"), batches(1)[0]
    expected = adapter.predict(x)
    torch.nn.ModuleList([adapter]).train()
    assert adapter.train() is adapter and torch.equal(adapter.predict(x), expected)
    assert adapter.eval() is adapter and torch.equal(adapter.predict(x), expected)


def _transformer(widths: tuple[int, ...]) -> torch.nn.Module:
    """Norm layers under the names of torchvision's Swin, where there are several widths, or of a shallow ViT."""
    stages = [torch.nn.Sequential(torch.nn.LayerNorm(a), torch.nn.Linear(a, b)) for a, b in pairwise(widths)]
    return torch.nn.Sequential(
        OrderedDict(
            features=torch.nn.Sequential(*stages),
            norm=torch.nn.LayerNorm(widths[-1]),
            head=torch.nn.Linear(widths[-1], 3),
        )
    )


@pytest.mark.parametrize("method", ["sar", "deyo"])
@pytest.mark.parametrize(("widths", "moves"), [((4, 8, 16), True), ((4, 4, 4), False)])
def test_the_last_norm_stays_in_networks_of_one_width_alone(method: str, widths: tuple[int, ...], moves: bool) -> None:
    adapter = sf.adapt(_transformer(widths), method, probe=torch.rand(2, 4))
    moving = {name for name, p in adapter.student.named_parameters() if p.requires_grad}
    assert ("body.norm.weight" in moving) is moves and "body.features.0.0.weight" in moving


@pytest.mark.parametrize("method", sf.list_methods())
@pytest.mark.filterwarnings("ignore:.*was not finite")
def test_a_bad_batch_under_the_deferred_check_takes_no_gradient_step(method: str) -> None:
    adapter = make(method, tiny_net(), check_input="deferred")
    first, *others = batches(4)
    adapter.prepare(first)
    for x in others:
        adapter(x)
    optimizers = [m for m in adapter.modules() if isinstance(m, FlatOptimizer)]
    before = [b.clone() for m in optimizers for b in (m.count, m.first, m.second)]
    adapter(torch.full_like(first, float("nan")))
    after = [b for m in optimizers for b in (m.count, m.first, m.second)]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("method", sf.list_methods())
def test_a_method_that_clips_views_says_so_of_images_elsewhere(method: str) -> None:
    adapter = describe(method).adapter
    modules = [vars(sys.modules[base.__module__]) for base in adapter.__mro__]
    assert adapter.clips_views == any({"augment", "augmix"} & module.keys() for module in modules)
    net = nn.Sequential(nn.Flatten(), nn.Linear(3 * 64, 4))
    made = describe(method).adapter(net, adapter.Config.build({}), Runtime())
    x = torch.rand(4, 3, 8, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made._warn_of_clipping(x * 1.02)
        made.clips_views or made._warn_of_clipping(x * 4 - 2)
    if adapter.clips_views:
        with pytest.warns(UserWarning, match=rf"{method} draws views of images in \[0, 1\], and these lie in \[-"):
            made._warn_of_clipping(x * 4 - 2)
        with pytest.warns(UserWarning, match="will be clipped"):
            made._warn_of_clipping(x * 255)


def test_normalised_images_are_named_at_the_first_batch() -> None:
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
    )
    adapter = sf.adapt(net, "cotta")
    x = torch.randn(4, 3, 16, 16)
    with pytest.warns(UserWarning, match="cotta draws views of images"):
        adapter(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        adapter(x)


@pytest.mark.parametrize("made", [torch.jit.script, lambda net: torch.jit.trace(net, batches(1)[0])])
def test_scripted_models_are_refused(made: Any) -> None:
    with pytest.raises(sf.ModelError, match=r"give the nn\.Module it was made from"):
        sf.adapt(made(tiny_net().eval()), "tent")


def test_one_logit_is_refused_and_two_made_of_it_say_the_same() -> None:
    one = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.LayerNorm(8), nn.Linear(8, 1))
    with pytest.raises(sf.ModelError, match=r"one logit.*torch\.cat\(\[-z, z\], 1\) / 2"):
        sf.adapt(one, "tent")(torch.rand(4, 3, 2, 2))
    z = torch.randn(5, 1)
    two = torch.cat([-z, z], 1) / 2
    torch.testing.assert_close(two.softmax(1)[:, 1:], z.sigmoid())


def test_another_default_dtype_is_named() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(sf.ConfigError, match=r"default dtype is torch\.float64"):
            sf.adapt(tiny_net().float(), "tent")(torch.rand(4, 3, 16, 16))
    finally:
        torch.set_default_dtype(torch.float32)
