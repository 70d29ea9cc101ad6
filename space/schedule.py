"""How to compute it: every choice that changes the kernel or its launch, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

from .errors import BadInput, shown

COOPERATIVE = "coop"
PINGPONG = "pp"
GEMV = "gemv"


@dataclass(frozen=True, slots=True, order=True)
class Schedule:
    """One point of the space. It prints as a name that holds every field and parses back from it.

    A field added later gets a default that reproduces the kernel as it was without the field, and a name
    token that is left out at the default: old names and journals stay readable.
    """

    arrangement: str
    """`coop`: the consumer warpgroups share a CTA tile; `pp` (ping-pong): two own alternate tiles; `gemv`: a few rows
    times a matrix that is streamed through registers (`space.gemv` has the meaning of the tile there)."""
    consumers: int
    """Consumer warpgroups of a CTA; one more warpgroup produces, except in `gemv`."""
    tile_m: int
    tile_n: int
    tile_k: int
    """CTA tile in elements; `tile_k` is what one stage holds and one mbarrier round hands over."""
    stages: int
    """Slots of the operand ring in shared memory."""
    mma_in_flight: int = 0
    """wgmma groups left running when a stage is handed back: 0 drains every k-block, 1 frees the stage before."""
    cluster_m: int = 1
    cluster_n: int = 1
    """CTAs along m and n that share operand tiles by TMA multicast."""
    persistent: bool = True
    """A CTA walks over many tiles; otherwise there is one CTA for each tile."""
    ctas: int = 0
    """Cap on the persistent CTAs; 0 takes all that the device holds at once."""
    raster: str = "m"
    """The axis along which consecutive tiles run inside a band."""
    swizzle: int = 1
    """Swizzle factor: tiles of a band along the raster axis."""
    serpentine: bool = False
    """z-swizzle: odd bands run backwards."""
    k_zigzag: bool = False
    """z-swizzle of K: odd tiles of a CTA walk K backwards."""
    producer_regs: int = 0
    consumer_regs: int = 0
    """Registers a thread after setmaxnreg; both 0 leaves what the launch gave."""
    store: str = "tma"
    """`tma`: stmatrix into shared memory, then a TMA store; `copy`: then ordinary stores, for rows that TMA does not
    take; `direct`: registers to global memory."""
    epilogue_n: int = 64
    """Columns of one epilogue chunk (not with `direct`)."""
    epilogue_buffers: int = 2
    """Chunks of shared memory a consumer warpgroup cycles through (not with `direct`)."""
    swap_ab: bool = False
    """The kernel computes D^T = B x A^T: `tile_m` and `cluster_m` then run along n, `tile_n` and `cluster_n` along
    m."""
    split_k: int = 1
    """CTAs that share the K of one tile."""
    reduction: str = "cluster"
    """How the parts of a tile are added. `cluster`: the CTAs that share it are a cluster and send their parts to the
    owner of a piece through distributed shared memory. `slots`: in device memory, the last to arrive adds them in
    order. `shares`: in device memory, each adds some pieces of the tile in order when all have arrived. `atomic`: added
    to device memory in the order of arrival."""
    stream_k: bool = False
    """Tiles beyond the last full wave are cut into equal shares of k-blocks, one for each CTA."""
    evict_first: str = ""
    """Operand (`a` or `b`) whose lines leave L2 first: one that is read only once."""
    dependent_launch: str = ""
    """Programmatic dependent launch: `wait` starts before the kernel ahead has finished and waits before it loads;
    `weights` first loads stages of B."""

    l2_promotion: int = 256
    """Bytes that a load brings into L2 at least (tensor map; 0 for none)."""

    residual_buffers: int = 0
    """Chunks of a residual that loader warps bring to shared memory ahead of the epilogue, for each consumer
    warpgroup; 0 has the consumers read it from device memory."""

    multicast_kind: str = "slice"
    """Who loads an operand tile that CTAs of a cluster share. `slice`: each of them a slice, for all; `rotate`: the
    whole tile, in turn from stage to stage; `leader`: the first of them always the whole tile."""

    clip_boxes: bool = False
    """Rows of a tile that no row of the matrix falls into are not loaded, rather than filled with zeros."""

    straight_start: bool = False
    """One thread initialises the mbarriers, at addresses known to the compiler: straight code, where lanes with an
    mbarrier each become a loop over the lanes."""

    early_fill: bool = False
    """The first round of stages is asked for as soon as their mbarriers are initialised, before anything else."""

    alone_stages: int = 0
    """First stages that every CTA of a cluster fills for itself, before it has met the others."""

    interleave_k: bool = False
    """CTAs that share the K of a tile take its k-blocks in turn, so that what they read at a time is side by side;
    otherwise each takes a stretch."""

    exchange_in_ring: bool = False
    """Parts of tiles that CTAs of a cluster exchange lie in the operand ring, which then has room for more stages;
    nobody sends before all of them have multiplied. Otherwise they have memory of their own."""

    held_blocks: int = 0
    """All k-blocks of the tile's column operand, which then stay in shared memory while a CTA walks along a column of
    tiles, a stretch of neighbours: the ring is for the row operand alone. 0: the ring is for both."""

    parts_apart: bool = False
    """CTAs launched one after the other take the same share of K of neighbouring tiles, so that L2 answers their loads
    of the same lines together; otherwise they take the shares of one tile, which have no line in common."""

    hands: int = 1
    """Each wave of tiles is cut into so many stretches, and CTAs (or clusters) launched one after the other begin in
    them in turn. The hardware fills GPC after GPC, so that otherwise neighbours of the walk share a GPC, and tiles past
    the last full wave keep few of the GPCs busy."""

    load: str = "tma"
    """`tma`: one thread has the copy engine load operands; `copy`: all threads of the producer copy those whose rows
    TMA does not take."""

    @property
    def operands(self) -> tuple[str, str]:
        """The operands of the problem that the kernel takes for its A and its B."""
        return ("b", "a") if self.swap_ab else ("a", "b")

    @property
    def staged(self) -> bool:
        """Whether results go through chunks of shared memory."""
        return self.store != "direct"

    @property
    def threads(self) -> int:
        """Threads of a CTA: the consumers, and the producer warpgroup where there is one."""
        return 128 * (self.consumers + (self.arrangement != GEMV))

    @property
    def warpgroups_per_tile(self) -> int:
        """Consumer warpgroups that share one CTA tile."""
        return 1 if self.arrangement == PINGPONG else self.consumers

    @property
    def m64_per_warpgroup(self) -> int:
        """64-row wgmma blocks each consumer warpgroup owns of its tile."""
        return self.tile_m // (64 * self.warpgroups_per_tile)

    @property
    def accumulators(self) -> int:
        """fp32 accumulator registers of a consumer thread: 64 x n over 128 threads for each wgmma block."""
        return self.m64_per_warpgroup * self.tile_n // 2

    @property
    def cluster_size(self) -> int:
        """CTAs of a cluster."""
        return self.cluster_m * self.cluster_n * (1 if self.workspace else self.split_k)

    @property
    def workspace(self) -> bool:
        """Whether parts of tiles meet in device memory."""
        return self.reduction != "cluster"

    @property
    def dealt(self) -> bool:
        """Whether the CTAs that share a tile's K each add up and store some pieces of it, dealt to them in turn."""
        return self.split_k > 1 and self.reduction in ("cluster", "shares")

    @property
    def split_cluster(self) -> bool:
        """Whether parts of tiles meet in the shared memory of a cluster."""
        return self.split_k > 1 and not self.workspace

    @property
    def asks_early(self) -> bool:
        """Whether loads are asked for before the warps take their roles, or the CTAs of a cluster have met."""
        return self.early_fill or self.alone_stages > 0

    @property
    def numerics(self) -> str:
        """`deterministic`, or `atomic` where sums depend on the order of arrival."""
        return "atomic" if self.reduction == "atomic" else "deterministic"

    @property
    def multicast(self) -> bool:
        """Whether CTAs share operand tiles."""
        return self.cluster_m * self.cluster_n > 1

    @property
    def name(self) -> str:
        """The name of a valid schedule, such as `coop2_128x256x64_s4_w0_c2x1_pall_rm8_reg40-232_tma64x2`."""
        walk = ("p" + (str(self.ctas) if self.ctas else "all")) if self.persistent else "tile"
        store = f"{self.store}{self.epilogue_n}x{self.epilogue_buffers}" if self.staged else "direct"
        tokens = [
            f"{self.arrangement}{self.consumers}",
            f"{self.tile_m}x{self.tile_n}x{self.tile_k}",
            f"s{self.stages}",
            f"w{self.mma_in_flight}",
            f"c{self.cluster_m}x{self.cluster_n}",
            walk,
            f"r{self.raster}{self.swizzle}" + "z" * self.serpentine,
            f"reg{self.producer_regs}-{self.consumer_regs}",
            store,
        ]
        if self.k_zigzag:
            tokens.append("kz")
        if self.swap_ab:
            tokens.append("swap")
        if self.split_k > 1:
            tokens.append(f"k{self.split_k}")
        if self.stream_k:
            tokens.append("sk")
        if self.workspace:
            tokens.append(self.reduction)
        if self.evict_first:
            tokens.append(f"ef{self.evict_first}")
        if self.dependent_launch:
            tokens.append(f"pdl-{self.dependent_launch}")
        if self.l2_promotion != 256:
            tokens.append(f"l2-{self.l2_promotion}")
        if self.residual_buffers:
            tokens.append(f"res{self.residual_buffers}")
        if self.multicast_kind != "slice":
            tokens.append(self.multicast_kind)
        if self.clip_boxes:
            tokens.append("clip")
        if self.straight_start:
            tokens.append("straight")
        if self.early_fill:
            tokens.append("early")
        if self.alone_stages:
            tokens.append(f"alone{self.alone_stages}")
        if self.interleave_k:
            tokens.append("turn")
        if self.exchange_in_ring:
            tokens.append("inring")
        if self.held_blocks:
            tokens.append(f"hold{self.held_blocks}")
        if self.parts_apart:
            tokens.append("apart")
        if self.hands > 1:
            tokens.append(f"hands{self.hands}")
        if self.load != "tma":
            tokens.append(f"ld-{self.load}")
        return "_".join(tokens)

    def __str__(self) -> str:
        return self.name

    @property
    def kernel(self) -> Schedule:
        """This schedule with the choices that only the launch sees at their defaults.

        Schedules with equal `kernel` are served by one cubin.
        """
        return vary(self, **_LAUNCH_DEFAULTS)

    @classmethod
    def parse(cls, name: str) -> Schedule:
        """The schedule that prints as `name`.

        Raises:
            BadInput: the text is not such a name.
        """
        match = _NAME.fullmatch(name.strip()) if isinstance(name, str) else None
        if match is None:
            misfit = f"; {_misfit(name.strip())}" if isinstance(name, str) else ""
            raise BadInput(f"schedule is {shown(name)}: valid is a name such as {_EXAMPLE.name}{misfit}")
        g = match.groupdict()
        direct = g["store"] == "direct"
        schedule = cls(
            arrangement=g["arrangement"],
            consumers=int(g["consumers"]),
            tile_m=int(g["tile_m"]),
            tile_n=int(g["tile_n"]),
            tile_k=int(g["tile_k"]),
            stages=int(g["stages"]),
            mma_in_flight=int(g["mma_in_flight"]),
            cluster_m=int(g["cluster_m"]),
            cluster_n=int(g["cluster_n"]),
            persistent=g["walk"] != "tile",
            ctas=int(g["ctas"] or 0),
            raster=g["raster"],
            swizzle=int(g["swizzle"]),
            serpentine=bool(g["serpentine"]),
            k_zigzag=bool(g["kz"]),
            producer_regs=int(g["producer_regs"]),
            consumer_regs=int(g["consumer_regs"]),
            store=g["staged"] or "direct",
            epilogue_n=_DEFAULTS["epilogue_n"] if direct else int(g["epilogue_n"]),
            epilogue_buffers=_DEFAULTS["epilogue_buffers"] if direct else int(g["epilogue_buffers"]),
            swap_ab=bool(g["swap"]),
            split_k=int(g["split_k"] or 1),
            stream_k=bool(g["stream_k"]),
            reduction=g["reduction"] or "cluster",
            evict_first=g["evict_first"] or "",
            dependent_launch=g["dependent_launch"] or "",
            l2_promotion=int(g["l2_promotion"] or 256),
            residual_buffers=int(g["residual_buffers"] or 0),
            multicast_kind=g["multicast_kind"] or "slice",
            clip_boxes=bool(g["clip"]),
            straight_start=bool(g["straight"]),
            early_fill=bool(g["early"]),
            alone_stages=int(g["alone"] or 0),
            interleave_k=bool(g["turn"]),
            exchange_in_ring=bool(g["inring"]),
            held_blocks=int(g["held_blocks"] or 0),
            parts_apart=bool(g["apart"]),
            hands=int(g["hands"] or 1),
            load=g["load"] or "tma",
        )
        if schedule.name != name.strip():
            raise BadInput(f"schedule is {name!r}: valid is its one name, {schedule.name}")
        return schedule

    def to_json(self) -> dict[str, Any]:
        """The JSON object of journals and tables: every field by name."""
        return dict(zip(_PLACES, _values(self), strict=True))

    @classmethod
    def from_json(cls, obj: Mapping[str, Any]) -> Schedule:
        """The inverse of `to_json`. A field that is missing gets its default; an unknown one is refused.

        Raises:
            BadInput: a field is unknown, has another type, or has no default and is missing.
        """
        try:
            # All types at once: tables and journals hold many.
            if [*map(type, obj.values())] != [*map(_TYPES.__getitem__, obj)]:
                name, value = next(item for item in obj.items() if type(item[1]) is not _TYPES[item[0]])
                raise TypeError(f"{name} is {value!r}, not of type {_TYPES[name].__name__}")
            return cls(**obj)
        except (KeyError, TypeError, AttributeError) as error:
            raise BadInput(f"schedule object {obj!r} cannot be read: {error}") from error


_PLACES = {field.name: place for place, field in enumerate(fields(Schedule))}
_values = attrgetter(*_PLACES)


def vary(schedule: Schedule, **changes: Any) -> Schedule:
    """`dataclasses.replace`, several times faster: nearly all the time of a walk over the space is spent here."""
    values = list(_values(schedule))
    for name, value in changes.items():
        values[_PLACES[name]] = value
    return Schedule(*values)


LAUNCH_FIELDS = ("persistent", "ctas", "raster", "swizzle", "serpentine", "k_zigzag", "l2_promotion")
"""Fields that are run-time arguments of the kernel, of its launch or of its tensor maps: changing them compiles
nothing."""

_EXAMPLE = Schedule(COOPERATIVE, 2, 128, 256, 64, 4, cluster_m=2, swizzle=8, producer_regs=40, consumer_regs=232)
_DEFAULTS: dict[str, Any] = {f.name: f.default for f in fields(Schedule)}
_LAUNCH_DEFAULTS = {name: _DEFAULTS[name] for name in LAUNCH_FIELDS}
_TYPES = {name: type(value) for name, value in _EXAMPLE.to_json().items()}
_TOKENS = (
    r"(?P<arrangement>coop|pp|gemv)(?P<consumers>\d{1,9})",
    r"(?P<tile_m>\d{1,9})x(?P<tile_n>\d{1,9})x(?P<tile_k>\d{1,9})",
    r"s(?P<stages>\d{1,9})",
    r"w(?P<mma_in_flight>\d{1,9})",
    r"c(?P<cluster_m>\d{1,9})x(?P<cluster_n>\d{1,9})",
    r"(?P<walk>tile|pall|p(?P<ctas>[1-9]\d{0,8}))",
    r"r(?P<raster>[mn])(?P<swizzle>\d{1,9})(?P<serpentine>z?)",
    r"reg(?P<producer_regs>\d{1,9})-(?P<consumer_regs>\d{1,9})",
    r"(?P<store>direct|(?P<staged>tma|copy)(?P<epilogue_n>\d{1,9})x(?P<epilogue_buffers>\d{1,9}))",
)
"""Every name has these, joined by underscores, in this order."""

_SELDOM = (
    r"(?P<kz>kz)",
    r"(?P<swap>swap)",
    r"k(?P<split_k>\d{1,9})",
    r"(?P<stream_k>sk)",
    r"(?P<reduction>slots|atomic|shares)",
    r"ef(?P<evict_first>[ab])",
    r"pdl-(?P<dependent_launch>wait|weights)",
    r"l2-(?P<l2_promotion>\d{1,9})",
    r"res(?P<residual_buffers>\d{1,9})",
    r"(?P<multicast_kind>rotate|leader)",
    r"(?P<clip>clip)",
    r"(?P<straight>straight)",
    r"(?P<early>early)",
    r"alone(?P<alone>\d{1,9})",
    r"(?P<turn>turn)",
    r"(?P<inring>inring)",
    r"hold(?P<held_blocks>\d{1,9})",
    r"(?P<apart>apart)",
    r"hands(?P<hands>\d{1,9})",
    r"ld-(?P<load>copy)",
)
"""What follows, in this order, where it is not the default."""

_NAME = re.compile("_".join(_TOKENS) + "".join(f"(_{token})?" for token in _SELDOM), re.ASCII)


def _misfit(name: str) -> str:
    """The first part of a name that does not fit, and what would."""
    words = name.split("_")
    for at, (token, example) in enumerate(zip(_TOKENS, _EXAMPLE.name.split("_"), strict=True)):
        word = words[at] if at < len(words) else ""
        if not re.fullmatch(token, word, re.ASCII):
            return f"{shown(word)} stands where one like {example} belongs"
    left = iter(_SELDOM)
    for word in words[len(_TOKENS) :]:
        if not any(re.fullmatch(token, word, re.ASCII) for token in left):
            return f"{shown(word)} is unknown, or in the wrong place"
    raise AssertionError(f"{name} fits")
