-- A prefill phase after an eviction computes other tokens than the prompt's: only its engine knows how many.
ALTER TABLE phases ADD COLUMN IF NOT EXISTS tokens Nullable(UInt32) CODEC(T64, ZSTD);
