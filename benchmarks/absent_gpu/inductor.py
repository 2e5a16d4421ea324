"""Count what torch's compiler makes for a GPU that is not there; import after `device.pretend`.

Inductor writes its kernels, Triton and ptxas make the machine code of the capability, and nothing runs.
"""

import re
import subprocess
import tempfile
import types
from pathlib import Path

import torch
import torch._functorch.config
import torch._inductor.config
import triton
from torch import fx
from torch._inductor import compile_fx
from torch._inductor.graph import GraphLowering
from torch._inductor.runtime import triton_helpers, triton_heuristics
from torch._subclasses import fake_tensor
from triton.backends.compiler import GPUTarget

from absent_gpu.device import CARDS, require

REPLACED = (
    "torch._functorch.config:force_non_lazy_backward_lowering",
    "torch._inductor.compile_fx:compile_fx",
    "torch._inductor.config:joint_graph_constant_folding",
    "torch._inductor.graph:GraphLowering._compile_to_module_lines",
    "torch._inductor.runtime.triton_helpers:set_driver_to_gpu",
    "torch._inductor.runtime.triton_heuristics:CachingAutotuner.precompile",
    "torch._inductor.runtime.triton_heuristics:CachingAutotuner._create_compile_meta",
    "torch._inductor.runtime.triton_heuristics:CachingAutotuner._create_compile_options",
    "torch._inductor.scheduler:BaseSchedulerNode.get_read_write_buffers_sizes",
)
CUOBJDUMP = Path(triton.__file__).with_name("backends") / "nvidia" / "bin" / "cuobjdump"
ATTENTION = {
    "flex_attention_backward": "attention backward",
    "flex_attention": "attention forward",
}


class Compiler:
    """Take the place of Inductor's last steps; keep the counts of each graph and of each kernel.

    A graph has its launches, of its own kernels and of libraries, and the bytes that its own kernels, without
    attention, read and write. A kernel has its warps, registers a thread, spilled bytes a thread and shared bytes.
    """

    def __init__(self, capability: int):
        require(REPLACED)
        self.target = GPUTarget("cuda", capability, 32)
        self.graphs: list[dict] = []
        self.kernels: list[dict] = []
        self.usages: dict[str, dict] = {}  # of kernels that differ in their name alone
        shared_bytes = CARDS[capability].shared_kib * 1024
        utils = types.SimpleNamespace(get_device_properties=lambda device: {"max_shared_mem": shared_bytes})
        driver = types.SimpleNamespace(get_current_target=lambda: self.target, utils=utils)
        triton.runtime.driver.set_active(driver)
        triton_helpers.set_driver_to_gpu = lambda: None
        torch._functorch.config.force_non_lazy_backward_lowering = True
        torch._inductor.config.joint_graph_constant_folding = False  # it would compute the constants on the GPU

        compile_graph = compile_fx.compile_fx
        load = GraphLowering._compile_to_module_lines

        def compile_and_return_graph(graph: fx.GraphModule, inputs: list, config_patches: dict, **options):
            """Compile a graph of Dynamo's and its gradient; return the graph itself, which runs on fakes."""
            examples = [node.meta["example_value"] for node in graph.graph.nodes if node.op == "placeholder"]
            with fake_tensor.unset_fake_temporarily(), torch._inductor.config.patch(config_patches):
                compile_graph(graph, examples)
            return graph.forward

        def count_and_load(lowering: GraphLowering, code):
            """Count the launches of a graph before its code is loaded."""
            self.graphs.append(counts_of_graph(lowering, code.value))
            return load(lowering, code)

        def compile_configurations(tuner, *arguments, **options):
            """Compile a kernel, and load nothing."""
            self.compile_configurations(tuner)

        compile_fx.compile_fx = compile_and_return_graph
        GraphLowering._compile_to_module_lines = count_and_load
        triton_heuristics.CachingAutotuner.precompile = compile_configurations

    def compile_configurations(self, tuner: triton_heuristics.CachingAutotuner) -> None:
        """Compile each configuration of a kernel, among which a GPU would choose by time."""
        for config in tuner.configs:
            meta = tuner._create_compile_meta(config)
            options = tuner._create_compile_options(config, meta)
            body = tuner.fn.src.partition("(")[2]
            key = repr((body, sorted(meta.items(), key=str), sorted(options.items(), key=str)))
            if key not in self.usages:
                source = triton.compiler.ASTSource(tuner.fn, meta["signature"], meta["constants"], meta["configs"][0])
                self.usages[key] = usage(triton.compile(source, target=self.target, options=options))
            self.kernels.append({"kernel": kind_of(tuner.fn.__name__), **self.usages[key]})


def kind_of(name: str) -> str:
    """Return of which kind a kernel is, by its name."""
    if "_tem_" not in name:
        return "own"
    return next(kind for part, kind in ATTENTION.items() if part in name)


def counts_of_graph(lowering: GraphLowering, code: str) -> dict:
    """Return what a compiled graph launches and moves."""
    kind = "backward" if lowering.is_backward else "inference" if lowering.is_inference else "forward"
    own = [node for node in lowering.scheduler.nodes if not (node.is_extern() or node.is_template())]
    body = code[code.index("def call(") :]
    return {
        "graph": kind,
        "kernels": body.count(".run("),
        "library_calls": len(re.findall(r"\bextern_kernels\.|= torch\.ops\.aten\.", body)),
        "bytes": sum(node.get_read_write_buffers_sizes() for node in own),
    }


def usage(compiled: triton.compiler.CompiledKernel) -> dict:
    """Return what a kernel takes of a multiprocessor."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        report = subprocess.check_output([CUOBJDUMP, "--dump-resource-usage", file.name], text=True)
    return {
        "warps": compiled.metadata.num_warps,
        "registers": max(int(count) for count in re.findall(r"REG:(\d+)", report)),
        "spilled_bytes": max(int(count) for count in re.findall(r"STACK:(\d+)", report)),
        "shared_bytes": compiled.metadata.shared,
    }
