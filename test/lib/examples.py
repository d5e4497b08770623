"""What trains in the models of test/data/models (its README.md): --trainable of each."""

LORA = "*.lora_[AB].*,llm_proj.*"
PROJECTION = "llm_proj.*"
# Parts below frozen ones: positions and a block of the vision encoder, the query tokens.
UPSTREAM = (
    "query_tokens,visual_encoder.embeddings.position_embedding,"
    "visual_encoder.encoder.layers.1.*,llm_proj.*"
)
# By the name before an underscore.
TRAINABLE = {
    "a1": LORA,
    "a2": PROJECTION,
    "a3": "llm_model.*,llm_proj.*",
    "a4": LORA,
    "a5": LORA,
    "a6": LORA,
    "a7": LORA,
    "a8": LORA,
    "a9": UPSTREAM,
    "b1": "*",
    "b2": "*",
}
