"""Launches without a GPU: headers, parameter bytes, pointers, and a real exported launcher."""

import ctypes
import shutil
import subprocess

import numpy as np
import pytest

from lethe.ptx import launch
from lethe.ptx.examples import load, names
from lethe.ptx.examples.build import steady
from lethe.ptx.launch import Argument, HostLauncher, Launch, LaunchError, Parameter, Pointer

HEADER = """
typedef struct {
    void *data;
    int32_t dynamic_shapes[2];
    int64_t dynamic_strides[1];
} k_Tensor_x_t;

static int32_t cute_dsl_k_wrapper(k_Kernel_Module_t *module, k_Tensor_x_t *x, cudaStream_t stream) {
    int32_t ret = 0;
    void *args[3] = {
        x, &stream,
        &ret
    };
    _mlir_k__mlir_ciface_run(args, 3);
    return ret;
}
"""


def test_header_gives_symbol_and_arguments():
    symbol, arguments = launch.parse_header(HEADER)
    assert symbol == "_mlir_k__mlir_ciface_run"
    assert arguments == [Argument("x", 2, 1, 64), Argument("", 0, 0, 64)]


def test_header_of_something_else_is_refused():
    with pytest.raises(LaunchError, match="export_to_c"):
        launch.parse_header("int main(void);")


def test_tensor_struct_holds_address_shape_and_the_strides_that_are_not_one():
    array = np.zeros((3, 5), np.float16)
    struct = launch.tensor_struct(Argument("x", 2, 1, 64), array)
    assert struct.data == array.ctypes.data
    assert list(struct.shapes) == [3, 5] and list(struct.strides) == [5]
    assert ctypes.sizeof(struct) == 24


def test_tensor_struct_refuses_a_tensor_of_another_rank():
    with pytest.raises(LaunchError, match=r"'x' wants 2 shapes and 1 strides"):
        launch.tensor_struct(Argument("x", 2, 1, 64), np.zeros((2, 3, 4)))


def test_parameter_sizes_of_numbers_arrays_and_pointers():
    ptx = """.visible .entry f(.param .u64 .ptr .global .align 1 f_param_0,
        .param .align 64 .b8 f_param_1[128],
        .param .u32 f_param_2, .param .f64 f_param_3) .maxntid 128 { ret; }
        .visible .entry g() { ret; }"""
    assert launch.parameter_sizes(ptx) == {"f": [8, 128, 4, 8], "g": []}


def test_pointers_are_found_inside_a_tensor_and_bound_to_another_address():
    array = np.zeros(10, np.float32)
    address = array.ctypes.data
    data = b"".join(word.to_bytes(8, "little") for word in (address + 8, 7, address + 40))
    found = launch.pointers(data, {"x": array})
    assert found == (Pointer(0, "x", 8),)  # one past the end is not inside
    moved = Parameter(data, found).bind({"x": 4096})
    assert int.from_bytes(moved[:8], "little") == 4104 and moved[8:] == data[8:]


def test_byte_count_follows_strides():
    assert launch.byte_count(np.zeros((4, 6), np.float32)[:, :3]) == 4 * (3 * 6 + 2 + 1)


def test_steady_launch_has_no_addresses_and_no_garbage():
    garbage = bytes(range(1, 129))
    before = Launch(
        "k", (1, 1, 1), (1, 1, 1), 0, (Parameter(garbage, (Pointer(0, "a", 0), Pointer(120, "a", 4))),)
    )
    (parameter,) = steady(before).parameters
    assert parameter.data[:8] == bytes(8) and parameter.data[64:] == bytes(64)
    assert parameter.data[8:64] == garbage[8:64] and parameter.pointers == (Pointer(0, "a", 0),)


FAKE_LAUNCHER = r"""
#include <stddef.h>
#include <stdint.h>
typedef struct {
  unsigned grid[3], block[3];
  size_t shared;
  void *stream, *attributes;
  unsigned count;
} config;
int _cudaLibraryLoadData(void**, const void*, void*, void**, unsigned, void*, void**, unsigned);
int _cudaLibraryGetKernel(void**, void*, const char*);
int _cudaDeviceGetAttribute(int*, int, int);
int _cudaLaunchKernelEx(const config*, const void*, void**);
static void *kernel;
void _mlir_k_cuda_init(void **a) {
  void *l;
  *(int *)a[1] = _cudaLibraryLoadData(&l, "x", 0, 0, 0, 0, 0, 0);
}
void _mlir_k_cuda_load_to_device(void **a) {
  *(int *)a[2] = _cudaLibraryGetKernel(&kernel, 0, "scale");
}
void _mlir_k__mlir_ciface_run(void **args, int n) {
  struct { void *data; int32_t shapes[2]; int64_t strides[1]; } *x = args[0];
  int id[20] = {4, 0, 2, 1, 1}, shared = 0;
  config c = {{x->shapes[0], 1, 1}, {32, 1, 1}, 0, 0, id, 1};
  int rows = x->shapes[0]; void *parameters[2] = {&x->data, &rows};
  _cudaDeviceGetAttribute(&shared, ATTRIBUTE, 0);
  c.shared = shared;
  *(int32_t *)args[n - 1] = _cudaLaunchKernelEx(&c, kernel, parameters);
}
"""


def fake_launcher(tmp_path, attribute=97):
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("linking a host launcher needs gcc")
    source, header = tmp_path / "k.c", tmp_path / "k.h"
    source.write_text(FAKE_LAUNCHER.replace("ATTRIBUTE", str(attribute)))
    header.write_text(HEADER)
    subprocess.run([compiler, "-fPIC", "-c", source, "-o", tmp_path / "k.o"], check=True)
    ptx = ".visible .entry scale(.param .u64 scale_param_0, .param .u32 scale_param_1) { ret; }"
    return HostLauncher(tmp_path / "k.o", header, ptx)


def test_capture_calls_the_host_launcher(tmp_path):
    array = np.zeros((5, 4), np.float32)
    (found,) = fake_launcher(tmp_path).capture(array)
    assert (found.kernel, found.grid, found.block, found.cluster) == (
        "scale",
        (5, 1, 1),
        (32, 1, 1),
        (2, 1, 1),
    )
    assert found.shared == launch.SHARED_BYTES_PER_BLOCK
    assert found.parameters[0].pointers == (Pointer(0, "x", 0),)
    assert int.from_bytes(found.parameters[1].data, "little") == 5


def test_capture_names_an_attribute_it_does_not_know(tmp_path):
    with pytest.raises(LaunchError, match="device attribute 1234"):
        fake_launcher(tmp_path, attribute=1234).capture(np.zeros((5, 4), np.float32))


def test_a_broken_object_is_one_sentence(tmp_path):
    (tmp_path / "k.o").write_text("not an object")
    (tmp_path / "k.h").write_text(HEADER)
    with pytest.raises(LaunchError, match="could not link"):
        HostLauncher(tmp_path / "k.o", tmp_path / "k.h", "")


@pytest.mark.parametrize("name", names())
def test_recorded_parameters_fit_the_kernel(name):
    record = load(name)
    sizes = launch.parameter_sizes(record.ptx)[record.launch.kernel]
    assert [len(p.data) for p in record.launch.parameters] == sizes
    pointed = {q.tensor for p in record.launch.parameters for q in p.pointers}
    assert pointed == {t.name for t in record.tensors}
