//===- StreamTest.cpp - The stand-in of libcuda, and faults of hosts ------===//

#include "test/device/programs/Streams.h"
#include <atomic>
#include <cmath>
#include <cstring>
#include <elf.h>
#include <gmock/gmock.h>
#include <thread>

using namespace mgq::scenario;
using testing::HasSubstr;
using testing::Not;

//===----------------------------------------------------------------------===//
// Host programs
//===----------------------------------------------------------------------===//

/// A chain over two streams, then two readers and a writer after both.
SCENARIO(chain) {
  openDevice();
  Scale scale;
  Stream first, second, third;
  Event made, read, readToo;
  Memory<float> a(std::vector<float>(count, 1)), b(count), c(count), d(count);
  scale(a, b, 2, first);
  made.record(first);
  if (!has("read"))
    made.before(second);
  made.before(third);
  scale(b, c, 3, second);
  scale(b, d, 5, third);
  read.record(second);
  readToo.record(third);
  if (!has("first reader"))
    read.before(first);
  if (!has("second reader"))
    readToo.before(first);
  CHECK_OK(cuMemsetD32Async(b.address, 0, count, first.handle));
  CHECK_OK(cuCtxSynchronize());
  if (!std::getenv("FAULT"))
    CHECK_THAT(isFilled(b, 0) && isFilled(c, 6) && isFilled(d, 10));
  return 0;
}

/// Streams that touch parts of one allocation, and a host that waits.
SCENARIO(parts) {
  openDevice();
  Stream first, second;
  Memory<float> all(2 * count);
  CHECK_OK(cuMemsetD32Async(all.address, 0, count, first.handle));
  CHECK_OK(cuMemsetD32Async(all.address + bytes, 0, count, second.handle));
  first.wait();
  if (has("overlap"))
    CHECK_OK(cuMemsetD32Async(all.address + bytes - 4, 0, count, first.handle));
  else
    CHECK_OK(cuMemsetD32Async(all.address, 0, count, second.handle));
  CHECK_OK(cuCtxSynchronize());
  return 0;
}

/// The default stream waits for blocking streams, and they for it.
SCENARIO(legacy) {
  openDevice();
  Memory<float> memory(count);
  CUstream blocking;
  CHECK_OK(cuStreamCreate(&blocking, has("non-blocking")
                                         ? CU_STREAM_NON_BLOCKING
                                         : CU_STREAM_DEFAULT));
  CHECK_OK(cuMemsetD32Async(memory.address, 1, count, blocking));
  CHECK_OK(cuMemsetD32Async(memory.address, 2, count, nullptr));
  CHECK_OK(cuMemsetD32Async(memory.address, 3, count, blocking));
  CHECK_OK(cuCtxSynchronize());
  CHECK_OK(cuStreamDestroy(blocking));
  return 0;
}

/// Copies of page-locked memory.
SCENARIO(pinned) {
  openDevice();
  Stream stream;
  Memory<float> memory(count);
  float *pinned;
  CHECK_OK(cuMemHostAlloc(reinterpret_cast<void **>(&pinned), bytes, 0));
  std::fill(pinned, pinned + count, 1.0f);
  // Keeps the stream busy until the host goes on.
  static std::atomic<bool> go{false};
  CHECK_OK(cuLaunchHostFunc(
      stream.handle,
      [](void *) {
        while (!go)
          std::this_thread::yield();
      },
      nullptr));
  CHECK_OK(cuMemcpyHtoDAsync(memory.address, pinned, bytes, stream.handle));
  if (has("early change"))
    pinned[7] = 2;
  go = true;
  stream.wait();
  go = false;
  CHECK_OK(cuLaunchHostFunc(
      stream.handle,
      [](void *) {
        while (!go)
          std::this_thread::yield();
      },
      nullptr));
  CHECK_OK(cuMemcpyDtoHAsync(pinned, memory.address, bytes, stream.handle));
  CHECK_THAT(std::isnan(pinned[0])); // Read too early.
  go = true;
  stream.wait();
  CHECK_THAT(pinned[0] == 1);
  CHECK_OK(cuMemFreeHost(pinned));
  return 0;
}

SCENARIO(copies) {
  openDevice();
  Stream stream;
  Memory<float> a(count), b(count);
  std::vector<float> host(count, 3), back(count);
  CHECK_OK(cuMemcpyHtoDAsync(a.address, host.data(), bytes / 2, stream.handle));
  std::fill(host.begin(), host.end(), 4.0f); // Pageable: was read before.
  CHECK_OK(cuMemcpyDtoDAsync(b.address, a.address, bytes, stream.handle));
  CHECK_OK(cuMemcpyDtoHAsync(back.data(), b.address,
                             has("uninitialized") ? bytes : bytes / 2,
                             stream.handle));
  if (has("bounds"))
    CHECK_THAT(cuMemcpyDtoHAsync(back.data(), b.address + 8, bytes,
                                 stream.handle) == CUDA_ERROR_INVALID_VALUE);
  stream.wait();
  for (size_t i = 0; i < count / 2; ++i)
    CHECK_THAT(back[i] == 3);
  CHECK_OK(
      cuMemcpyAsync(CUdeviceptr(back.data()), b.address, 4, stream.handle));
  stream.wait();
  return 0;
}

SCENARIO(memory_errors) {
  openDevice();
  size_t free, total;
  CHECK_OK(cuMemGetInfo(&free, &total));
  CHECK_THAT(free == 1 << 20 && total == 1 << 20);
  CUdeviceptr half, more;
  CHECK_OK(cuMemAlloc(&half, 1 << 19));
  CHECK_THAT(cuMemAlloc(&more, (1 << 19) + 1) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK_OK(cuMemGetInfo(&free, &total));
  CHECK_THAT(free == 1 << 19);
  CHECK_OK(cuMemFree(half));
  CHECK_OK(cuMemGetInfo(&free, &total));
  CHECK_THAT(free == 1 << 20);
  if (has("twice"))
    CHECK_THAT(cuMemFree(half) == CUDA_ERROR_INVALID_VALUE);
  if (has("after free"))
    CHECK_THAT(cuMemsetD8(half, 0, 16) == CUDA_ERROR_INVALID_VALUE);
  return 0;
}

SCENARIO(leaks) {
  openDevice();
  CUdeviceptr memory;
  void *host;
  CUstream stream;
  CUevent event;
  CUmodule module;
  CUgraph graph;
  CUgraphExec executable;
  CHECK_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CHECK_OK(cuMemAlloc(&memory, 16));
  CHECK_OK(cuMemHostAlloc(&host, 16, 0));
  CHECK_OK(cuEventCreate(&event, 0));
  CHECK_OK(cuModuleLoadData(&module, "faults"));
  CHECK_OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  CHECK_OK(cuMemsetD8Async(memory, 0, 16, stream));
  CHECK_OK(cuStreamEndCapture(stream, &graph));
  CHECK_OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
  if (has("left"))
    return 0;
  CHECK_OK(cuGraphExecDestroy(executable));
  CHECK_OK(cuGraphDestroy(graph));
  CHECK_OK(cuModuleUnload(module));
  CHECK_OK(cuEventDestroy(event));
  CHECK_OK(cuMemFreeHost(host));
  CHECK_OK(cuMemFree(memory));
  CHECK_OK(cuStreamDestroy(stream));
  if (has("stream twice"))
    CHECK_THAT(cuStreamDestroy(stream) == CUDA_ERROR_INVALID_HANDLE);
  if (has("old event"))
    CHECK_THAT(cuEventSynchronize(event) == CUDA_ERROR_INVALID_HANDLE);
  return 0;
}

SCENARIO(unfinished) {
  openDevice();
  static CUstream stream;
  CHECK_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CHECK_OK(cuLaunchHostFunc(
      stream,
      [](void *) { std::this_thread::sleep_for(std::chrono::hours(1)); },
      nullptr));
  return 0;
}

/// What a device that broke says.
SCENARIO(broken_kernel) {
  openDevice();
  Scale scale;
  Stream stream;
  Memory<float> a(std::vector<float>(count, 1)), b(count);
  scale(a, b, 2, stream);
  std::printf("%d\n", cuStreamSynchronize(stream.handle));
  CUdeviceptr more;
  std::printf("%d\n", cuMemAlloc(&more, 16));
  const char *text;
  CHECK_OK(cuGetErrorString(CUDA_ERROR_ILLEGAL_ADDRESS, &text));
  std::puts(text);
  std::fflush(nullptr);
  std::exit(0); // Nothing can be given back.
}

SCENARIO(second_allocation) {
  openDevice();
  CUdeviceptr first, second;
  CHECK_OK(cuMemAlloc(&first, 16));
  CUresult status = cuMemAlloc(&second, 16);
  std::printf("%d\n", status);
  if (status == CUDA_SUCCESS)
    CHECK_OK(cuMemFree(second));
  CHECK_OK(cuMemFree(first));
  return 0;
}

SCENARIO(init) {
  CUdevice device;
  CHECK_THAT(cuDeviceGet(&device, 0) == CUDA_ERROR_NOT_INITIALIZED);
  CUresult status = cuInit(0);
  std::printf("init %d\n", status);
  if (status != CUDA_SUCCESS)
    return 0;
  CUdeviceptr memory;
  CHECK_THAT(cuMemAlloc(&memory, 16) == CUDA_ERROR_INVALID_CONTEXT);
  int devices, major, minor;
  CHECK_OK(cuDeviceGetCount(&devices));
  CHECK_OK(cuDeviceGetAttribute(
      &major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0));
  CHECK_OK(cuDeviceGetAttribute(
      &minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0));
  std::printf("%d devices of sm_%d%d\n", devices, major, minor);
  CHECK_THAT(cuDeviceGet(&device, devices) == CUDA_ERROR_INVALID_DEVICE);
  return 0;
}

/// An image for sm_80, without a twin.
SCENARIO(image) {
  openDevice();
  Elf64_Ehdr header{};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_ABIVERSION] = 8;
  header.e_flags = 80 << 8;
  CUmodule module;
  std::printf("load %d\n", cuModuleLoadData(&module, &header));
  return 0;
}

/// PTX for sm_90, and of a version that no driver knows yet.
SCENARIO(ptx) {
  openDevice();
  CUmodule module;
  for (const char *text :
       {".version 8.0\n.target sm_90\n", ".version 99.0\n.target sm_80\n"})
    std::printf("load %d\n", cuModuleLoadData(&module, text));
  return 0;
}

/// Two devices, each used by a thread of its own.
SCENARIO(two_devices) {
  auto work = [](int ordinal) {
    openDevice(ordinal);
    Scale scale;
    Stream stream;
    Memory<float> a(std::vector<float>(count, 1)), b(count);
    scale(a, b, float(ordinal + 2), stream);
    stream.wait();
    CHECK_THAT(isFilled(b, float(ordinal + 2)));
  };
  std::thread other(work, 1);
  work(0);
  other.join();
  return 0;
}

/// A program that looks functions up, as one that loads libcuda.so.1 does.
SCENARIO(proc_address) {
  openDevice();
  void *function = nullptr;
  CUdriverProcAddressQueryResult found;
  CHECK_OK(cuGetProcAddress("cuMemGetInfo", &function, CUDA_VERSION,
                            CU_GET_PROC_ADDRESS_DEFAULT, &found));
  CHECK_THAT(found == CU_GET_PROC_ADDRESS_SUCCESS);
  size_t free, total;
  CHECK_OK(reinterpret_cast<CUresult (*)(size_t *, size_t *)>(function)(
      &free, &total));
  CHECK_THAT(total == size_t(2) << 30);
  CHECK_OK(
      cuGetProcAddress("cuNoSuchThing", &function, CUDA_VERSION, 0, &found));
  CHECK_THAT(found == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND && !function);
  CUevent from, to;
  Stream stream;
  CHECK_OK(cuEventCreate(&from, CU_EVENT_DEFAULT));
  CHECK_OK(cuEventCreate(&to, CU_EVENT_DEFAULT));
  CHECK_OK(cuEventRecord(from, stream.handle));
  CHECK_OK(cuLaunchHostFunc(
      stream.handle,
      [](void *) { std::this_thread::sleep_for(std::chrono::milliseconds(5)); },
      nullptr));
  CHECK_OK(cuEventRecord(to, stream.handle));
  CHECK_OK(cuEventSynchronize(to));
  float milliseconds;
  CHECK_OK(cuEventElapsedTime(&milliseconds, from, to));
  CHECK_THAT(milliseconds >= 5);
  CHECK_THAT(cuEventQuery(to) == CUDA_SUCCESS);
  CHECK_OK(cuEventDestroy(from));
  CHECK_OK(cuEventDestroy(to));
  return 0;
}

//===----------------------------------------------------------------------===//
// Tests
//===----------------------------------------------------------------------===//

namespace {
struct Streams : testing::Test {
  static void SetUpTestSuite() { makeTwin("faults", "faults.c"); }
};
} // namespace

TEST_F(Streams, ReadsWaitForWrites) {
  check("chain", "read", ": no event orders them");
  check("chain", "read", ": no event orders them", {"MGQ_FAKE_DELAY=0"});
}
TEST_F(Streams, WritesWaitForTheFirstReader) {
  check("chain", "first reader", "kernel scale on stream 1 reads");
}
TEST_F(Streams, WritesWaitForTheSecondReader) {
  check("chain", "second reader", "kernel scale on stream 2 reads");
}
TEST_F(Streams, PartsOfAnAllocationAreApart) {
  check("parts", "overlap", "stream race: fill on stream");
}
TEST_F(Streams, TheDefaultStreamIsOrdered) {
  check("legacy", "non-blocking", "stream race: fill on stream");
}

TEST_F(Streams, ThePinnedSourceOfACopyStays) {
  check("pinned", "early change",
        "copy to device on stream 0: the host changed "
        "its source before the copy ran");
}
TEST_F(Streams, CopiesReadWhatWasWritten) {
  check("copies", "uninitialized", "copy to host on stream");
  check("copies", "bounds",
        "cuMemcpyDtoHAsync of 16384 bytes out of bounds, at byte 8 of device "
        "memory 2 (16384 bytes)");
}
TEST_F(Streams, MemoryHasAnEnd) {
  check("memory_errors", "twice", "there is no such device memory",
        {"MGQ_FAKE_MEMORY=1048576"});
  check("memory_errors", "after free", "out of bounds, at address",
        {"MGQ_FAKE_MEMORY=1048576"});
}

TEST_F(Streams, WhatIsLeftIsNamed) {
  check("leaks", "stream twice", "there is no such CUDA stream");
  check("leaks", "old event", "there is no such CUDA event");
  check("leaks", "left", "leak: 1 of kind 'CUDA stream' left at exit");
  Result result = run("leaks", {"FAULT=left"});
  for (const char *kind :
       {"CUDA stream", "device memory", "CUDA event", "page-locked host memory",
        "CUDA module", "CUDA graph", "CUDA executable graph"})
    EXPECT_THAT(result.output,
                HasSubstr(std::string("leak: 1 of kind '") + kind + "'"));
}

TEST_F(Streams, UnfinishedWorkIsNamed) {
  Result result = run("unfinished");
  EXPECT_EQ(result.status, faultStatus);
  EXPECT_THAT(result.output, HasSubstr("the program ends while work is still "
                                       "queued: 1 operations on stream 0"));
}

TEST_F(Streams, FailuresCanBeAskedFor) {
  Result kernel = run("broken_kernel", {"MGQ_FAKE_FAIL=kernel:1:700"});
  EXPECT_EQ(kernel.status, 0) << kernel.output;
  EXPECT_EQ(kernel.output,
            "700\n700\nan illegal memory access was encountered\n");
  EXPECT_EQ(run("second_allocation").output, "0\n");
  EXPECT_EQ(run("second_allocation", {"MGQ_FAKE_FAIL=cuMemAlloc:2:2"}).output,
            "2\n");
  EXPECT_EQ(run("init", {"MGQ_FAKE_FAIL=cuMemAlloc:9:2,cuInit:1:803"}).output,
            "init 803\n");
  Result wrong = run("init", {"MGQ_FAKE_FAIL=cuInit"});
  EXPECT_EQ(wrong.status, 2);
  EXPECT_EQ(wrong.output, "mgq test device: MGQ_FAKE_FAIL is 'cuInit', "
                          "expected FUNCTION:CALL:CODE,...\n");
  Result letters = run("init", {"MGQ_FAKE_SM=sm_80"});
  EXPECT_EQ(letters.status, 2);
  EXPECT_EQ(letters.output, "mgq test device: MGQ_FAKE_SM is 'sm_80', expected "
                            "a number from 10\n");
}

TEST_F(Streams, DevicesAreAsAskedFor) {
  EXPECT_EQ(run("init").output, "init 0\n1 devices of sm_80\n");
  EXPECT_EQ(run("init", {"MGQ_FAKE_DEVICES=0"}).output, "init 100\n");
  EXPECT_EQ(run("init", {"MGQ_FAKE_DEVICES=3", "MGQ_FAKE_SM=90"}).output,
            "init 0\n3 devices of sm_90\n");
  Result two = run("two_devices", {"MGQ_FAKE_DEVICES=2"});
  EXPECT_EQ(two.status, 0) << two.output;
  Result address = run("proc_address");
  EXPECT_EQ(address.status, 0) << address.output;
}

TEST_F(Streams, ImagesAreOfTheArchitecture) {
  Result other = run("image", {"MGQ_FAKE_SM=90"});
  EXPECT_EQ(other.output, "load 209\n");
  EXPECT_EQ(other.status, 0);
  EXPECT_EQ(run("image", {"MGQ_FAKE_SM=87"}).output, "load 209\n");
  EXPECT_EQ(run("ptx").output, "load 218\nload 222\n");
  EXPECT_EQ(run("ptx", {"CUDA_DISABLE_PTX_JIT=1"}).output,
            "load 223\nload 223\n");
  EXPECT_THAT(run("ptx", {"MGQ_FAKE_SM=100"}).output,
              HasSubstr("there is no twin of a module"));
  Result missing = run("image", {"MGQ_FAKE_SM=86"});
  EXPECT_EQ(missing.status, faultStatus);
  EXPECT_THAT(missing.output, HasSubstr("there is no twin of a module"));
  Result unset = run("image", {"MGQ_TWIN_DIR="});
  EXPECT_THAT(unset.output, HasSubstr("MGQ_TWIN_DIR is not set"));
}

TEST_F(Streams, ReportsGoToAFileToo) {
  std::string file = twinFolder() + "/report";
  run("leaks", {"FAULT=stream twice", "MGQ_FAKE_REPORT=" + file});
  Result text = shell("cat " + file);
  EXPECT_EQ(text.output, "mgq test device: there is no such CUDA stream, or it "
                         "was given back before\n");
}
