"""The public bug reports behind the corpus: where each was filed, under the identifiers that faults name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["KINDS", "REPORTS", "PublicReport"]

KINDS: Final = {
    "a": "outputs that are not written",
    "b": "memory that is read before anybody wrote it",
    "c": "strides and layouts",
    "d": "indices, bounds and their widths",
    "e": "outputs that overlap inputs",
    "f": "state between calls, and races",
    "g": "number formats and rounding",
    "h": "matrix products with unusual arguments",
}


@dataclass(frozen=True, slots=True)
class PublicReport:
    """One report, or a few about the same thing. kinds: letters of `KINDS`."""

    project: str
    numbers: tuple[int, ...]
    kinds: str

    @property
    def urls(self) -> tuple[str, ...]:
        """Where it can be read; GitHub leads from an issue's address to a pull request's."""
        return tuple(f"https://github.com/{self.project}/issues/{number}" for number in self.numbers)


REPORTS: Final[dict[str, PublicReport]] = {
    "B001": PublicReport("vllm-project/vllm", (37442,), "a"),
    "B003": PublicReport("vllm-project/vllm", (37539,), "a"),
    "B004": PublicReport("vllm-project/vllm", (57094,), "ab"),
    "B005": PublicReport("sgl-project/sglang", (19902,), "a"),
    "B006": PublicReport("flashinfer-ai/flashinfer", (2883,), "a"),
    "B007": PublicReport("vllm-project/vllm", (39645,), "a"),
    "B008": PublicReport("tgale96/grouped_gemm", (36,), "a"),
    "B009": PublicReport("vllm-project/vllm", (31785,), "a"),
    "B010": PublicReport("vllm-project/vllm", (19784, 26680, 42988), "a"),
    "B011": PublicReport("vllm-project/vllm", (56922,), "a"),
    "B012": PublicReport("jax-ml/jax", (20227,), "a"),
    "B013": PublicReport("pytorch/pytorch", (176254,), "a"),
    "B014": PublicReport("ByteDance-Seed/Triton-distributed", (182,), "a"),
    "B015": PublicReport("ROCm/rocm-libraries", (9055,), "ah"),
    "B016": PublicReport("ROCm/aiter", (3069,), "b"),
    "B017": PublicReport("ROCm/aiter", (3641,), "b"),
    "B018": PublicReport("ROCm/aiter", (4711,), "b"),
    "B019": PublicReport("ROCm/aiter", (4420,), "bf"),
    "B020": PublicReport("flashinfer-ai/flashinfer", (941,), "b"),
    "B021": PublicReport("flashinfer-ai/flashinfer", (942,), "b"),
    "B022": PublicReport("vllm-project/vllm", (936, 641), "b"),
    "B023": PublicReport("vllm-project/vllm", (57156, 57158), "b"),
    "B024": PublicReport("ROCm/aiter", (4245,), "bd"),
    "B029": PublicReport("Dao-AILab/flash-attention", (978,), "b"),
    "B030": PublicReport("deepseek-ai/FlashMLA", (77,), "b"),
    "B031": PublicReport("flashinfer-ai/flashinfer", (4452,), "b"),
    "B034": PublicReport("sgl-project/sglang", (1782, 1094, 1469), "bd"),
    "B035": PublicReport("flashinfer-ai/flashinfer", (5176, 4430), "bd"),
    "B036": PublicReport("vllm-project/tpu-inference", (3426,), "b"),
    "B039": PublicReport("ROCm/aiter", (4186,), "b"),
    "B040": PublicReport("vllm-project/vllm", (47303,), "bd"),
    "B041": PublicReport("vllm-project/vllm", (45448,), "bf"),
    "B042": PublicReport("ROCm/aiter", (5385,), "cdh"),
    "B043": PublicReport("flashinfer-ai/flashinfer", (5114,), "ch"),
    "B044": PublicReport("ROCm/ATOM", (773,), "ch"),
    "B045": PublicReport("pytorch/pytorch", (104832,), "ch"),
    "B046": PublicReport("torch/torch7", (671, 672), "ch"),
    "B054": PublicReport("vllm-project/vllm", (42135,), "c"),
    "B058": PublicReport("vllm-project/flash-attention", (87,), "c"),
    "B060": PublicReport("ggml-org/llama.cpp", (17891,), "cd"),
    "B063": PublicReport("pytorch/pytorch", (125437,), "cd"),
    "B064": PublicReport("flashinfer-ai/flashinfer", (4015,), "cf"),
    "B065": PublicReport("lightseekorg/tokenspeed", (683,), "cd"),
    "B067": PublicReport("ROCm/aiter", (4474,), "d"),
    "B068": PublicReport("vllm-project/vllm", (47671,), "d"),
    "B070": PublicReport("thu-ml/SageAttention", (387, 386), "dc"),
    "B072": PublicReport("vllm-project/flash-attention", (42,), "d"),
    "B073": PublicReport("vllm-project/vllm", (39643,), "df"),
    "B075": PublicReport("ROCm/aiter", (3698,), "d"),
    "B078": PublicReport("vllm-project/vllm", (35969,), "d"),
    "B080": PublicReport("ml-explore/mlx", (3858,), "d"),
    "B081": PublicReport("ROCm/aiter", (4181, 5331), "dh"),
    "B082": PublicReport("HazyResearch/HipKittens", (65,), "d"),
    "B083": PublicReport("flashinfer-ai/flashinfer", (3957,), "df"),
    "B084": PublicReport("pegainfer-project/pegainfer", (291,), "d"),
    "B085": PublicReport("vllm-project/vllm", (20301, 25490, 27128), "df"),
    "B086": PublicReport("vllm-project/FlashMLA", (3,), "df"),
    "B087": PublicReport("pytorch/pytorch", (197636,), "dh"),
    "B088": PublicReport("microsoft/onnxruntime", (32391,), "d"),
    "B089": PublicReport("pytorch/pytorch", (87551,), "eh"),
    "B090": PublicReport("pytorch/pytorch", (85852, 13892, 48900), "eh"),
    "B091": PublicReport("cupy/cupy", (6214,), "eh"),
    "B092": PublicReport("lightseekorg/tokenspeed", (668,), "e"),
    "B094": PublicReport("ROCm/aiter", (4350,), "f"),
    "B095": PublicReport("ROCm/aiter", (4638,), "f"),
    "B096": PublicReport("JustVugg/colibri", (1098,), "f"),
    "B100": PublicReport("ROCm/aiter", (5393,), "f"),
    "B101": PublicReport("deepseek-ai/DeepGEMM", (451,), "f"),
    "B102": PublicReport("sgl-project/sglang", (27664,), "f"),
    "B104": PublicReport("pytorch/torchtitan", (3235,), "fb"),
    "B105": PublicReport("triton-lang/triton", (10745,), "g"),
    "B106": PublicReport("sgl-project/sglang", (28455,), "g"),
    "B107": PublicReport("sgl-project/sglang", (40581,), "g"),
    "B108": PublicReport("vllm-project/vllm", (42893,), "g"),
    "B109": PublicReport("ROCm/aiter", (4289,), "g"),
    "B111": PublicReport("pytorch/ao", (4714, 4762), "g"),
    "B112": PublicReport("NVIDIA/Model-Optimizer", (1397,), "g"),
    "B114": PublicReport("pytorch/pytorch", (83863, 95125), "g"),
    "B115": PublicReport("sonos/tract", (2586,), "g"),
    "B116": PublicReport("vllm-project/vllm-xpu-kernels", (609,), "gh"),
    "B118": PublicReport("vllm-project/vllm", (52796,), "g"),
    "B119": PublicReport("pytorch/pytorch", (31421,), "ha"),
    "B120": PublicReport("pytorch/pytorch", (175905, 175902), "ha"),
    "B128": PublicReport("pytorch/pytorch", (136299,), "hg"),
    "B130": PublicReport("ROCm/aiter", (3606,), "cb"),
    "B131": PublicReport("ROCm/aiter", (4076,), "df"),
    "B132": PublicReport("ROCm/aiter", (3855, 5559), "d"),
    "B133": PublicReport("sgl-project/sglang", (25556,), "cd"),
}
