"""How names are written for people, and the order in which methods and settings are listed."""

from __future__ import annotations

METHODS = {
    "source": "Source",
    "bn": "BN",
    "tent": "TENT",
    "eta": "ETA",
    "eata": "EATA",
    "sar": "SAR",
    "deyo": "DeYO",
    "lame": "LAME",
    "memo": "MEMO",
    "t3a": "T3A",
    "note": "NOTE",
    "adacontrast": "AdaContrast",
    "rotta": "RoTTA",
    "cotta": "CoTTA",
    "rmt": "RMT",
    "vida": "ViDA",
    "santa": "SANTA",
    "obao": "OBAO",
    "palm": "PALM",
    "tca": "TCA",
    "cmf": "CMF",
    "rdumb": "RDumb",
    "roid": "ROID",
    "asr": "ASR",
    "petta": "PeTTA",
    "dpcore": "DPCore",
    "reservoirtta": "ReservoirTTA",
    "lcotta": "LCoTTA",
    "slomo_fast": "SloMo-Fast",
    "slomo_fast_star": "SloMo-Fast*",
}
SETTINGS = (
    "continual",
    "mixed",
    "gradual",
    "episodic",
    "cross_group",
    "easy2hard",
    "hard2easy",
    "mixed_after_continual",
    "continual_after_mixed",
    "cyclic",
    "cyclic_group",
    "cycle_length",
    "lifelong",
    "stochastic",
    "ccc",
    "correlated",
)
DATA = {
    "cifar10_c": "CIFAR10-C",
    "cifar100_c": "CIFAR100-C",
    "imagenet_c": "ImageNet-C",
    "imagenet_r": "ImageNet-R",
    "imagenet_sketch": "ImageNet-Sketch",
    "ccc": "CCC",
    "glyphs": "Glyphs",
}
MODELS = {
    "wrn28": "WRN-28-10",
    "resnext29": "ResNeXt-29",
    "resnet50": "ResNet-50",
    "swin_b": "Swin-B",
    "vit_b_16": "ViT-B/16",
}
# Methods made for shifts that come back; the paper compares them in a table of their own.
RECURRING = ("asr", "petta", "dpcore", "reservoirtta", "lcotta", "slomo_fast", "slomo_fast_star")


def method_title(name: str) -> str:
    """The name a method's authors print, or the registered name."""
    return METHODS.get(name, name)


def method_rank(name: str) -> tuple[int, str]:
    """Sorting key: the unadapted network first, SloMo-Fast last, strangers just before it."""
    order = list(METHODS)
    if name in METHODS:
        place = order.index(name)
        return (place if not name.startswith("slomo_fast") else place + 1000, name)
    return (900, name)


def setting_title(name: str) -> str:
    """A setting's name as words: `mixed_after_continual` becomes `Mixed after continual`."""
    if name == "ccc":
        return "CCC"
    return name.replace("easy2hard", "easy to hard").replace("hard2easy", "hard to easy").replace("_", " ").capitalize()


def setting_rank(name: str) -> tuple[int, str]:
    """Sorting key: the paper's order, strangers last."""
    return (SETTINGS.index(name) if name in SETTINGS else len(SETTINGS), name)


def data_title(name: str) -> str:
    """A data set's usual spelling, or its registered name."""
    return DATA.get(name, name)


def data_rank(name: str) -> tuple[int, str]:
    """Sorting key: the usual benchmarks first."""
    order = list(DATA)
    return (order.index(name) if name in order else len(order), name)


def domain_title(name: str) -> str:
    """`gaussian_noise` becomes `gaussian noise`."""
    return name.replace("_", " ")
