//===- Graphs.cpp - Work that a GPU gets at once --------------------------===//

#include "runtime/src/cuda/Graphs.h"
#include "runtime/src/common/Error.h"

using namespace mgq::rt;

// Fewer kernels and copies are launched no slower one by one.
static constexpr size_t leastNodes = 4;
// Of all graphs of a rank: they take memory of the host and of the GPU, from
// what is left to the driver. What comes later is enqueued one by one.
static constexpr size_t mostNodes = size_t{1} << 16;

size_t Graphs::Hash::operator()(const WorkKey &key) const {
  uint64_t hash = 0;
  for (uint64_t word : key) {
    hash = (hash ^ word) * 0x9e3779b97f4a7c15u; // 2^64 / golden ratio, odd
    hash ^= hash >> 32;
  }
  return hash;
}

/// Whether a call has failed only because work is being captured.
static bool isOfCapture(CUresult status) {
  return status >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED &&
         status <= CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
}

/// Returns what the end of the capture says. A fault of `work` is thrown if it
/// is not the capture's, which has undone what came before it.
CUresult Graphs::capture(const std::function<void()> &work, CUgraph &graph) {
  // Other threads, with other GPUs, go on.
  cuCall(cuStreamBeginCapture, stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  recording = true;
  std::exception_ptr fault;
  try {
    work();
  } catch (...) {
    fault = std::current_exception();
  }
  recording = false;
  CUresult status = cuTry(cuStreamEndCapture, stream, &graph);
  if (!fault || isOfCapture(status))
    return status;
  if (status == CUDA_SUCCESS)
    cuTry(cuGraphDestroy, graph);
  std::rethrow_exception(fault);
}

/// Makes the graph of a key executable; "": done, or not worth it.
std::string Graphs::keep(const WorkKey &key, CUgraph graph) {
  size_t count = 0;
  cuCall(cuGraphGetNodes, graph, nullptr, &count);
  if (count < leastNodes || nodes + count > mostNodes)
    return "";
  CUgraphExec made = nullptr;
  const char *call = "cuGraphInstantiate";
  CUresult status = cuTry(cuGraphInstantiate, &made, graph, 0);
  if (status == CUDA_SUCCESS) {
    // Else the first launch does it, in a step, which it might hold up.
    call = "cuGraphUpload";
    status = cuTry(cuGraphUpload, made, stream);
    if (status != CUDA_SUCCESS)
      cuTry(cuGraphExecDestroy, made);
  }
  if (status == CUDA_ERROR_OUT_OF_MEMORY || status == CUDA_ERROR_NOT_SUPPORTED)
    return fmt::format("{}: {}", call, driverText(status));
  checkDriver(status, call);
  graphs.emplace(key, made);
  nodes += count;
  return "";
}

std::string Graphs::record(const WorkKey &key,
                           const std::function<void()> &work) {
  if (graphs.find(key) != graphs.end())
    return "";
  CUgraph graph = nullptr;
  CUresult status = capture(work, graph);
  if (isOfCapture(status))
    return fmt::format("cuStreamEndCapture: {}", driverText(status));
  checkDriver(status, "cuStreamEndCapture");
  std::string fault = keep(key, graph);
  cuCall(cuGraphDestroy, graph);
  return fault;
}

bool Graphs::launch(const WorkKey &key) {
  auto found = graphs.find(key);
  if (found == graphs.end())
    return false;
  cuCall(cuGraphLaunch, found->second, stream);
  return true;
}

void Graphs::clear() {
  graphs.clear();
  nodes = 0;
}
