"""Models from public packages, with random weights: each analysed, one line of JSON each, for test_fusion_foreign.py.

python foreign_models.py [NAME ...]
"""

import importlib
import json
import sys

import torch

from benchmarks.public_models import digest, save
from helpers.instruments.fusion import analyse

SIZES = {"vocab_size": 1000, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 4}
GROUPED = SIZES | {"num_key_value_heads": 2}
TOKENS = torch.arange(2 * 128).reshape(2, 128) % 1000
LIBRARIES = ("matmul", "convolution", "attention", "opaque")


def hugging_face(name: str, config: str, *inputs, keywords=None, **sizes):
    """A model of transformers in bf16, its inputs and keyword arguments."""
    package = importlib.import_module("transformers")
    model = getattr(package, name)(getattr(package, config)(**sizes)).to(torch.bfloat16).eval()
    return model, inputs, keywords or {}


def image(size=224):
    return torch.randn(2, 3, size, size, dtype=torch.bfloat16)


def resnet(memory_format):
    sizes = {"depths": [1, 1, 1, 1]}
    model, inputs, keywords = hugging_face("ResNetModel", "ResNetConfig", image(), **sizes)
    return (
        model.to(memory_format=memory_format),
        tuple(each.to(memory_format=memory_format) for each in inputs),
        keywords,
    )


def whisper():
    sizes = {"d_model": 256, "encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 512}
    sizes |= {"decoder_layers": 1, "decoder_attention_heads": 4}
    model, *_ = hugging_face("WhisperModel", "WhisperConfig", **sizes)
    return model.encoder, (torch.randn(1, 80, 3000, dtype=torch.bfloat16),), {}


def t5():
    sizes = {"vocab_size": 1000, "d_model": 256, "d_ff": 512, "num_layers": 2, "num_heads": 4}
    keywords = {"input_ids": TOKENS, "decoder_input_ids": TOKENS[:, :64]}
    return hugging_face("T5Model", "T5Config", keywords=keywords, **sizes)


def unet():
    diffusers = importlib.import_module("diffusers")
    model = diffusers.UNet2DConditionModel(
        sample_size=32,
        layers_per_block=1,
        block_out_channels=(64, 128),
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=64,
    )
    given = torch.randn(2, 4, 32, 32), torch.tensor(3), torch.randn(2, 77, 64)
    return model.eval(), given, {}


def graph_network(name: str, **options):
    layers = importlib.import_module("torch_geometric.nn")
    layer, edges = getattr(layers, name)(16, 32, **options), torch.arange(8000).reshape(2, 4000) % 1000

    def network(x, edges):
        return layer(x, edges).relu()

    network.model = layer
    return network, (torch.randn(1000, 16), edges), {}


def by_timm(name: str):
    timm = importlib.import_module("timm")
    return timm.create_model(name).eval(), (torch.randn(2, 3, 224, 224),), {}


def by_torchvision(name: str):
    models = importlib.import_module("torchvision.models")
    return getattr(models, name)().eval(), (torch.randn(2, 3, 224, 224),), {}


def training():
    """A step of Llama with AdamW."""
    package = importlib.import_module("transformers")
    model = package.LlamaForCausalLM(package.LlamaConfig(**GROUPED))
    optimizer = torch.optim.AdamW(model.parameters())

    def step(tokens):
        optimizer.zero_grad()
        loss = model(tokens, labels=tokens, use_cache=False).loss
        loss.backward()
        optimizer.step()
        return loss

    step.model, step.optimizer = model, optimizer
    step(TOKENS)  # so that there are gradients and moments
    return step, (TOKENS,), {}


QWEN = GROUPED | {"num_experts": 4, "moe_intermediate_size": 256, "shared_expert_intermediate_size": 256}
GPT2 = {"vocab_size": 1000, "n_embd": 256, "n_layer": 2, "n_head": 4}
VIT = {"hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 512}
MAMBA = {"vocab_size": 1000, "hidden_size": 128, "num_hidden_layers": 2}
MODELS = {
    "Llama": lambda: hugging_face("LlamaForCausalLM", "LlamaConfig", TOKENS, **GROUPED),
    "Qwen3": lambda: hugging_face("Qwen3ForCausalLM", "Qwen3Config", TOKENS, **GROUPED, head_dim=64),
    "Mixtral": lambda: hugging_face("MixtralForCausalLM", "MixtralConfig", TOKENS, **GROUPED, num_local_experts=4),
    "Qwen MoE": lambda: hugging_face("Qwen2MoeForCausalLM", "Qwen2MoeConfig", TOKENS, **QWEN),
    "GPT-2": lambda: hugging_face("GPT2LMHeadModel", "GPT2Config", TOKENS, **GPT2),
    "BERT": lambda: hugging_face("BertModel", "BertConfig", TOKENS, **SIZES),
    "T5": t5,
    "Whisper": whisper,
    "ViT": lambda: hugging_face("ViTModel", "ViTConfig", image(), **VIT),
    "ConvNeXt": lambda: hugging_face("ConvNextModel", "ConvNextConfig", image(), depths=[1, 1, 1, 1]),
    "ResNet": lambda: resnet(torch.contiguous_format),
    "ResNet, channels last": lambda: resnet(torch.channels_last),
    "Mamba": lambda: hugging_face("MambaForCausalLM", "MambaConfig", TOKENS[:1, :8], **MAMBA),
    "U-Net": unet,
    "GCN": lambda: graph_network("GCNConv"),
    "GCN without loops": lambda: graph_network("GCNConv", add_self_loops=False),
    "GATv2": lambda: graph_network("GATv2Conv"),
    "training step": training,
    "timm's ResNet-50": lambda: by_timm("resnet50"),
    "torchvision's ResNet-50": lambda: by_torchvision("resnet50"),
}


def found(name: str) -> dict:
    try:
        model, inputs, keywords = MODELS[name]()
    except (ImportError, RuntimeError) as error:  # a package that is not here, or is for another PyTorch
        return {"skipped": str(error).splitlines()[0]}
    before = digest(model, inputs, keywords)
    try:
        plan = analyse(model, *inputs, keywords=keywords, device="H100")
    except ValueError as error:
        return {"refused": str(error), "digests": [before, digest(model, inputs, keywords)]}
    digests = [before, digest(model, inputs, keywords)]
    save(model)
    targets = [each.target for each in plan.operations]
    today = plan.today
    return {
        "operators": len(targets),
        "digests": digests,
        "launches": [plan.launches_unfused, today.launches_fused, plan.launches_fused],
        "times": [plan.time_unfused, today.time_fused, plan.time_fused],
        "unsure": list(plan.unsure),
        "unsure_share": plan.unsure_share,
        "moving_nothing": sum(not group.work.bytes_written for group in plan.groups),
        "of_a_cpu": [each for each in targets if "_for_cpu" in each or "mkldnn" in each],
        "flops": sum(each.work.flops for each in plan.operations if each.kind in LIBRARIES),
        "rows": len(plan.report().rows()),
        "report": repr(plan).splitlines()[:12],
    }


if __name__ == "__main__":
    for each in sys.argv[1:] or MODELS:
        print(json.dumps({"name": each} | found(each)), flush=True)
