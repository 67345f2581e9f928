"""Save a random two-layer model with an existing tokenizer: `python model.py TOKENIZER_FOLDER NEW_FOLDER`."""

import sys


def main() -> None:
    """Make the model, whose weights depend only on the versions of torch and transformers."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(sys.argv[2])
    tokenizer.save_pretrained(sys.argv[2])


if __name__ == "__main__":
    main()
