//===- GraphTest.cpp - Graphs, and what a capture forbids -----------------===//

#include "test/device/programs/Streams.h"
#include <fstream>
#include <map>
#include <thread>

using namespace mgq::scenario;

//===----------------------------------------------------------------------===//
// Host programs
//===----------------------------------------------------------------------===//

/// Two streams captured in a graph: fork, join, and three launches.
SCENARIO(graph) {
  openDevice();
  Scale scale;
  Stream first, second;
  Event fork, join;
  Memory<float> a(std::vector<float>(count, 1)), b(count), c(count);
  CHECK_OK(cuStreamBeginCapture(first.handle, CU_STREAM_CAPTURE_MODE_GLOBAL));
  scale(a, b, 2, first);
  fork.record(first);
  fork.before(second);
  scale(b, c, 3, second);
  if (has("race in graph"))
    scale(a, c, 4, first);
  join.record(second);
  if (!has("unjoined"))
    join.before(first);
  scale(b, a, 1, first); // a is 1, 2, 4, 8
  CUgraph graph;
  CUresult ended = cuStreamEndCapture(first.handle, &graph);
  if (has("unjoined"))
    return ended == CUDA_ERROR_STREAM_CAPTURE_UNJOINED ? 0 : 1;
  CHECK_OK(ended);
  CUgraphExec executable;
  CHECK_OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
  CHECK_OK(cuGraphDestroy(graph));
  first.wait();
  for (int i = 0; i < 3; ++i)
    CHECK_OK(cuGraphLaunch(executable, first.handle));
  if (has("race after graph"))
    scale(c, b, 1, second);
  first.wait();
  if (!std::getenv("FAULT"))
    CHECK_THAT(isFilled(a, 8) && isFilled(c, 24));
  CHECK_OK(cuGraphExecDestroy(executable));
  return 0;
}

/// Calls that a capture forbids.
SCENARIO(capture_errors) {
  openDevice();
  Stream stream, other;
  Event event;
  event.record(other);
  CUdeviceptr memory;
  CHECK_OK(cuStreamBeginCapture(stream.handle, CU_STREAM_CAPTURE_MODE_GLOBAL));
  CHECK_THAT(cuStreamWaitEvent(stream.handle, event.handle, 0) ==
             CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
  CHECK_THAT(cuMemAlloc(&memory, 16) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CUgraph graph;
  CHECK_THAT(cuStreamEndCapture(stream.handle, &graph) ==
             CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CHECK_OK(cuStreamBeginCapture(stream.handle, CU_STREAM_CAPTURE_MODE_RELAXED));
  CHECK_OK(cuMemAlloc(&memory, 16));
  event.record(stream);
  CHECK_OK(cuStreamEndCapture(stream.handle, &graph));
  CHECK_THAT(cuEventSynchronize(event.handle) == CUDA_ERROR_CAPTURED_EVENT);
  CHECK_THAT(cuStreamWaitEvent(other.handle, event.handle, 0) ==
             CUDA_ERROR_CAPTURED_EVENT);
  CHECK_OK(cuGraphDestroy(graph));
  CHECK_OK(cuMemFree(memory));
  return 0;
}

/// Each begins a capture, in a mode, that a call of this thread invalidates.
template <typename Call>
static void checkForbidden(CUstreamCaptureMode mode, CUresult expected,
                           Call call) {
  Stream stream;
  Memory<float> memory(count);
  CUgraph graph;
  CHECK_OK(cuStreamBeginCapture(stream.handle, mode));
  CHECK_OK(cuMemsetD8Async(memory.address, 0, bytes, stream.handle));
  CHECK_THAT(call(stream) == expected);
  CHECK_THAT(cuMemsetD8Async(memory.address, 0, bytes, stream.handle) ==
             CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CHECK_THAT(cuStreamEndCapture(stream.handle, &graph) ==
             CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CHECK_THAT(graph == nullptr);
}

/// Waiting for a GPU, and asking how far it is, while a capture goes on.
SCENARIO(capture_waits) {
  openDevice();
  Stream other;
  Event event;
  event.record(other);
  other.wait();
  CUstreamCaptureMode mode = has("thread-local")
                                 ? CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
                                 : CU_STREAM_CAPTURE_MODE_GLOBAL;
  CUresult unsupported = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  auto forbids = [&](auto call) { checkForbidden(mode, unsupported, call); };
  forbids([&](Stream &stream) { return cuStreamQuery(stream.handle); });
  forbids([&](Stream &stream) { return cuStreamSynchronize(stream.handle); });
  forbids([&](Stream &) { return cuStreamQuery(other.handle); });
  forbids([&](Stream &) { return cuEventQuery(event.handle); });
  forbids([&](Stream &) { return cuEventSynchronize(event.handle); });
  forbids([&](Stream &) { return cuCtxSynchronize(); });
  forbids([&](Stream &) {
    void *memory;
    return cuMemHostAlloc(&memory, 16, 0);
  });
  forbids([&](Stream &) {
    CUmodule module;
    return cuModuleLoadData(&module, "faults");
  });
  // Only what the stream itself is asked for conflicts with a relaxed one.
  Stream relaxed;
  CUgraph graph;
  CHECK_OK(
      cuStreamBeginCapture(relaxed.handle, CU_STREAM_CAPTURE_MODE_RELAXED));
  CHECK_OK(cuEventQuery(event.handle));
  CHECK_OK(cuStreamEndCapture(relaxed.handle, &graph));
  CHECK_OK(cuGraphDestroy(graph));
  return 0;
}

/// Another thread, with the same device, works while one captures.
SCENARIO(capture_threads) {
  CUcontext context = openDevice();
  Stream stream;
  auto beside = [&](auto call) {
    CUresult result;
    std::thread([&] {
      CHECK_OK(cuCtxSetCurrent(context));
      result = call();
    }).join();
    return result;
  };
  auto allocate = [&] {
    CUdeviceptr memory;
    CUresult result = cuMemAlloc(&memory, 16);
    return result ? result : cuMemFree(memory);
  };
  CUgraph graph;
  auto begin = [&](CUstreamCaptureMode mode) {
    CHECK_OK(cuStreamBeginCapture(stream.handle, mode));
  };
  begin(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  CHECK_OK(beside(allocate));
  CHECK_THAT(beside([&] {
               return cuStreamEndCapture(stream.handle, &graph);
             }) == CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
  CHECK_OK(cuStreamEndCapture(stream.handle, &graph));
  CHECK_OK(cuGraphDestroy(graph));
  begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
  CHECK_THAT(beside(allocate) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CHECK_THAT(cuStreamEndCapture(stream.handle, &graph) ==
             CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  return 0;
}

/// The default stream would have to wait for what is captured.
SCENARIO(capture_legacy) {
  openDevice();
  Memory<float> memory(count);
  CHECK_OK(cuMemsetD8Async(memory.address, 0, bytes, nullptr));
  CUstream blocking;
  CHECK_OK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
  CUgraph graph;
  CHECK_OK(cuStreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
  CHECK_THAT(cuMemsetD8Async(memory.address, 0, bytes, nullptr) ==
             CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  CHECK_THAT(cuStreamEndCapture(blocking, &graph) ==
             CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  Stream stream; // Does not block.
  CHECK_OK(cuStreamBeginCapture(stream.handle, CU_STREAM_CAPTURE_MODE_RELAXED));
  CHECK_OK(cuMemsetD8Async(memory.address, 0, bytes, nullptr));
  CHECK_OK(cuStreamEndCapture(stream.handle, &graph));
  CHECK_OK(cuGraphDestroy(graph));
  CHECK_OK(cuCtxSynchronize());
  CHECK_OK(cuStreamDestroy(blocking));
  return 0;
}

/// An executable graph runs once at a time, whatever streams it is given to.
SCENARIO(graph_twice) {
  openDevice();
  Scale scale;
  Stream first, second;
  Memory<float> a(std::vector<float>(count, 1));
  CUgraph graph;
  CUgraphExec executable;
  CHECK_OK(cuStreamBeginCapture(first.handle, CU_STREAM_CAPTURE_MODE_GLOBAL));
  scale(a, a, 2, first);
  CHECK_OK(cuStreamEndCapture(first.handle, &graph));
  CHECK_OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
  CHECK_OK(cuGraphLaunch(executable, first.handle));
  CHECK_OK(cuGraphLaunch(executable, second.handle));
  if (has("race"))
    scale(a, a, 2, first);
  first.wait();
  second.wait();
  CHECK_THAT(has("race") || isFilled(a, 4));
  CHECK_OK(cuGraphExecDestroy(executable));
  CHECK_OK(cuGraphDestroy(graph));
  return 0;
}

//===----------------------------------------------------------------------===//
// Tests
//===----------------------------------------------------------------------===//

namespace {
struct Graphs : testing::Test {
  static void SetUpTestSuite() { makeTwin("faults", "faults.c"); }
};
} // namespace

TEST_F(Graphs, GraphsKeepTheirOrder) {
  check("graph", "race in graph", "stream race: kernel scale on stream");
  check("graph", "race after graph", "stream race: kernel scale on stream");
  EXPECT_EQ(run("graph", {"FAULT=unjoined"}).status, 0);
  check("graph_twice", "race", "stream race: kernel scale on stream");
}

TEST_F(Graphs, CapturesForbidWhatTheyDo) {
  for (const char *name : {"capture_errors", "capture_waits", "capture_threads",
                           "capture_legacy"}) {
    Result result = run(name);
    EXPECT_EQ(result.status, 0) << name << ": " << result.output;
  }
  Result local = run("capture_waits", {"FAULT=thread-local"});
  EXPECT_EQ(local.status, 0) << local.output;
}

TEST_F(Graphs, CallsAreCounted) {
  std::string file = twinFolder() + "/calls";
  EXPECT_EQ(run("graph_twice", {"MGQ_FAKE_CALLS=" + file}).status, 0);
  std::ifstream in(file);
  std::map<std::string, int> calls;
  std::string name;
  for (int number; in >> name >> number;)
    calls[name] = number;
  EXPECT_EQ(calls["cuLaunchKernel"], 1);
  EXPECT_EQ(calls["cuGraphLaunch"], 2);
  EXPECT_EQ(calls["kernel"], 2);
  EXPECT_EQ(calls["cuMemFree"], 1);
}
