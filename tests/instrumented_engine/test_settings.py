import socket

import pytest
from pydantic import ValidationError

from instrumented_engine import __main__ as program
from instrumented_engine.__main__ import listen, read_settings
from instrumented_engine.settings import Settings


def test_flags_and_environment(monkeypatch):
    monkeypatch.setenv("TOKENTRAIL_ENGINE_MAX_SEQS", "4")
    monkeypatch.setenv("TOKENTRAIL_ENGINE_PORT", "1234")
    settings = read_settings(["--port", "0", "--kv-blocks", "12", "--max-model-len", "99"])
    assert (settings.max_seqs, settings.port, settings.kv_blocks, settings.max_model_len) == (4, 0, 12, 99)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--max-waiting", "0"], "--max-waiting: Input should be greater than or equal to 1"),
        (["--max-seqs", "0"], "--max-seqs: Input should be greater than or equal to 1"),
        (["--port", "70000"], "--port: Input should be less than or equal to 65535"),
        (["--kv-blocks", "many"], "--kv-blocks: Input should be a valid integer"),
        (["--dtype", "int3"], "--dtype: Input should be 'auto', 'float32', 'bfloat16' or 'float16'"),
        (["--max-seqs", "8", "--max-batched-tokens", "4"], "--max-batched-tokens (4) must be at least --max-seqs (8)"),
        (["--quantization", "fp3"], "--quantization: Input should be 'none', 'int8' or 'int4'"),
        (["--quantization", "int4", "--dtype", "float32"], "--quantization int4 needs the CPU and --dtype bfloat16"),
        (["--speculative-model", "m.gguf"], "--speculative-model needs --speculative-tokens"),
        (["--speculative-keep-layers", "3"], "--speculative-keep-layers needs --speculative-model"),
        (["--keep-layers", "0-"], "--keep-layers: String should match pattern"),
        (["--kv-cache-dtype", "fp8"], "--kv-cache-dtype: Input should be 'auto', 'bfloat16', 'int8' or 'int4'"),
        (["--quantization", "fp8"], "--quantization: Input should be 'none', 'int8' or 'int4'"),
        (["--quantization", "int8", "--device", "cuda"], "--quantization int8 needs the CPU and --dtype bfloat16"),
    ],
)
def test_errors_name_the_flag(flags, message, capsys):
    assert read_settings(flags) is None
    assert f"error: {message}" in capsys.readouterr().err


def test_the_least_that_is_enough_is_taken():
    taken = read_settings(
        ["--max-seqs", "8", "--max-batched-tokens", "8", "--quantization", "int4", "--dtype", "bfloat16"]
    )
    assert (taken.max_batched_tokens, taken.quantization) == (8, "int4")
    taken = read_settings(["--speculative-tokens", "1", "--kv-role", "kv_consumer", "--swap-space", "0.5"])
    assert (taken.speculative_tokens, taken.kv_role) == (1, "kv_consumer")


LIMITS = {
    "port": (0, 65535), "kv_port": (0, 65535), "threads": (1, 1024), "max_seqs": (1, 1024),
    "max_batched_tokens": (1, 1 << 20), "watermark_blocks": (0, 1024), "speculative_tokens": (0, 64),
    "speculative_ngram": (1, 16), "block_size": (1, 1024), "kv_blocks": (1, None), "swap_space": (0, 4096),
    "kv_timeout_s": (None, 3600), "max_model_len": (2, None), "max_waiting": (1, None), "max_body_bytes": (1024, None),
    "idle_unload_s": (0, 2_592_000), "shutdown_grace_s": (0, 3600),
}  # fmt: skip
LONGEST = {
    "variant": 64,
    "reasoning_start_str": 64,
    "reasoning_end_str": 64,
    "keep_layers": 256,
    "speculative_keep_layers": 256,
}


def test_each_setting_is_taken_up_to_its_limits_and_refused_beyond():
    few = {"max_seqs": 1}
    for name, (least, most) in LIMITS.items():
        for value, beyond in ((least, -1), (most, 1)):
            if value is not None:
                Settings(**few | {name: value})
                with pytest.raises(ValidationError, match=name):
                    Settings(**few | {name: value + beyond})
    with pytest.raises(ValidationError, match="kv_timeout_s"):
        Settings(kv_timeout_s=0)
    needed = {"reasoning_start_str": "a", "reasoning_end_str": "z", "speculative_model": "m", "speculative_tokens": 1}
    for name, most in LONGEST.items():
        Settings(**needed | {name: "1," * (most // 2 - 1) + "11"})
        with pytest.raises(ValidationError, match=name):
            Settings(**needed | {name: "1," * (most // 2) + "1"})


def test_a_model_that_is_nowhere_is_told_at_once(capsys):
    for flags in (["--model"], ["--speculative-tokens", "2", "--speculative-model"]):
        assert read_settings([*flags, "/nowhere/at-all.gguf"]) is None
        assert "error: model '/nowhere/at-all.gguf' is neither one of" in capsys.readouterr().err


def test_unknown_flags_are_errors(capsys):
    with pytest.raises(SystemExit) as raised:
        read_settings(["--max-sequences", "3"])
    assert raised.value.code == 2
    assert "--max-sequences" in capsys.readouterr().err


def test_what_clients_call_the_model(tmp_path):
    (tmp_path / "llama-x.gguf").touch()
    names = [Settings(model=str(model)).model_name for model in ("smollm2-135m-instruct", tmp_path / "llama-x.gguf")]
    assert names == ["smollm2-135m-instruct", "llama-x"]
    assert Settings(model=str(tmp_path), served_model_name="mine").model_name == "mine"


def test_what_changes_the_answers_is_the_label_of_the_experiment_unless_there_is_one():
    assert [Settings(quantization=q).label for q in ("none", "int8")] == ["", "int8"]
    assert Settings(kv_cache_dtype="int4").label == "kv-int4"
    assert (
        Settings(quantization="int8", kv_cache_dtype="int8", keep_layers="0-3,9").label == "layers-0-3,9-int8-kv-int8"
    )
    assert Settings(quantization="int8", variant="mine").label == "mine"


def test_an_address_in_use_is_told_before_anything_is_loaded(monkeypatch, capsys):
    monkeypatch.setattr(program, "Service", None)  # building one would fail
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr("sys.argv", ["instrumented_engine", "--model", __file__, "--port", str(port)])
        assert program.main() == 2
    told = capsys.readouterr().err
    assert f"error: cannot listen on 127.0.0.1:{port}: Address already in use" in told
    assert "--host and --port set another address" in told


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a" * 80 + ".invalid"], ids=["unknown", "too long"])
def test_a_host_that_does_not_exist_is_told(host, capsys):
    assert listen(host, 0, "--kv-ip and --kv-port") is None
    told = capsys.readouterr().err
    assert f"error: cannot listen on {host}:0: " in told
    assert "--kv-ip and --kv-port set another address" in told
