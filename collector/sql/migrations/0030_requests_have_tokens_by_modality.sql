-- Requests tell the tokens of pictures and sound among their tokens. Rows that are stored have none: nobody kept them.
ALTER TABLE requests
    ADD COLUMN IF NOT EXISTS image_input_tokens Nullable(UInt32) AFTER reasoning_tokens,
    ADD COLUMN IF NOT EXISTS audio_input_tokens Nullable(UInt32) AFTER image_input_tokens,
    ADD COLUMN IF NOT EXISTS image_output_tokens Nullable(UInt32) AFTER audio_input_tokens,
    ADD COLUMN IF NOT EXISTS audio_output_tokens Nullable(UInt32) AFTER image_output_tokens;
