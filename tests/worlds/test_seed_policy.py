"""The shipped seed policy: transformers loads it unchanged, and its conversion to a Llama computes the same."""

from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from app.engine.tokenizer import ChatTokenizer
from trainer.worlds.office.expert import vocabulary
from trainer.worlds.recipes import MAX_LENGTH, Recipe
from trainer.worlds.seed_policy.pretrain import as_llama, new_model
from trainer.worlds.seed_policy.tokenizer import build_tokenizer

SHIPPED = Path(__file__).parents[2] / "app" / "seed_policy"


def tiny_tokenizer() -> Tokenizer:
    return build_tokenizer(["mail", "archive"])


def test_transformers_tokenizes_for_the_shipped_policy_as_the_server_does() -> None:
    ours, theirs = ChatTokenizer.load(SHIPPED), AutoTokenizer.from_pretrained(SHIPPED)
    for text in ("archive every one of my mails from iris", "<|user|>é\n<|end|>", " ".join(vocabulary())):
        assert theirs.encode(text, add_special_tokens=False) == ours.encode(text)
    assert (theirs.eos_token_id,) == ours.stop_ids


def test_the_shipped_policy_has_the_shape_of_the_recipe() -> None:
    shipped = AutoModelForCausalLM.from_pretrained(SHIPPED)
    taught = as_llama(new_model(Recipe(), Tokenizer.from_file(str(SHIPPED / "tokenizer.json"))))
    assert {name: weight.shape for name, weight in shipped.state_dict().items()} == {
        name: weight.shape for name, weight in taught.state_dict().items()
    }
    assert shipped.config.max_position_embeddings == MAX_LENGTH
    assert shipped.config.eos_token_id == taught.config.eos_token_id


def test_a_llama_of_the_same_weights_gives_the_same_logprobs(tmp_path: Path) -> None:
    model = new_model(Recipe(hidden=64, heads=2, layers=2, mlp=96), tiny_tokenizer()).eval()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3, generator=generator)
    as_llama(model).save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
    ids = torch.randint(0, model.config.vocab_size, (4, 50), generator=generator)
    with torch.no_grad():
        before, after = (each(ids).logits.log_softmax(-1) for each in (model, loaded))
    assert torch.allclose(before, after, atol=1e-5)
