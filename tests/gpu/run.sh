#!/usr/bin/env bash
# Checks on one GPU everything that a GPU can be asked: from a checkout, uninstalled, offline, in under eight minutes.
# `tests/gpu/run.sh --dry-run` runs anywhere and only looks whether every command here could be understood.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
dry=0
case "${1:-}" in
    "") ;;
    --dry-run) dry=1 ;;
    *) echo "usage: tests/gpu/run.sh [--dry-run]" >&2; exit 2 ;;
esac
export CUDA_DEVICE_MAX_CONNECTIONS=${CUDA_DEVICE_MAX_CONNECTIONS:-32} # streams that share a queue wait for each other
failed=()

# Every step runs, whatever became of those before it. Exit code 3 says that something is not installed here.
step() {
    echo "+ $*"
    if ((dry)); then
        "$python" tests/gpu/dry_run.py "$@" || failed+=("$*")
        return
    fi
    local code=0 started=$SECONDS
    "$python" "$@" || code=$?
    echo "  exit code $code after $((SECONDS - started)) s"
    ((code == 0 || code == 3)) || failed+=("$*")
}

if ((!dry)); then
    "$python" -c 'import torch; assert torch.cuda.is_available(), "torch sees no GPU here"'
    "$python" -c 'import torch; from mla_verify.devices import platform_of; print("torch", torch.__version__, "on", platform_of(torch.device("cuda", 0)))'
fi
step -m pytest -p no:cacheprovider -q -n 4 tests/gpu/test_on_a_gpu.py
step -m mla_verify list --device cuda
step -m mla_verify check --all --device cuda --examples 60
step -m mla_verify replay tests/cases --device cuda
step -m mla_verify bench --economy --device cuda
step -m mla_verify bench up-projection --device cuda --repeats 3
for check in memcheck initcheck racecheck; do
    step -m mla_verify replay tests/cases/up-projection-exact.json tests/cases/decode-uniform.json --device cuda --under "compute-sanitizer:$check"
done
step -m mla_verify replay tests/cases/decode-uniform.json --device cuda --under rocm-asan
step tests/gpu/table.py --device cuda --examples 40

if ((${#failed[@]})); then
    printf 'failed: %s\n' "${failed[@]}" >&2
    exit 1
fi
