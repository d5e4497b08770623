//===- CudaDevice.cpp - A rank on a GPU -----------------------------------===//

#include "runtime/src/cuda/CudaDevice.h"
#include "runtime/src/common/Arena.h"
#include "runtime/src/common/Error.h"
#include "runtime/src/common/Trace.h"
#include "runtime/src/cuda/Messages.h"
#include <algorithm>
#include <sched.h>
#include <set>
#include <string_view>
#include <unistd.h>

using namespace mgq::rt;

// Memory that is left to the driver: code, stacks, what libraries take.
static constexpr int64_t reservedBytes = int64_t{256} << 20;
// Of a copy to memory that is not page-locked.
static constexpr int64_t bounceBytes = int64_t{4} << 20;
// How long a rank that has failed waits for its GPU, in seconds.
static constexpr double drainSeconds = 2;

static thread_local CudaDevice *currentDevice = nullptr;

CudaDevice *CudaDevice::current() { return currentDevice; }

static CUdeviceptr addressOf(const void *pointer) {
  return reinterpret_cast<CUdeviceptr>(pointer);
}

/// Layer functions of a stage, by their names' addresses.
static int64_t functionCount(const mgq_rank &tables) {
  std::set<const char *> names;
  forSequences(tables, [&](const mgq_sequence &sequence) {
    for (int32_t i = 0; i < sequence.call_count; ++i)
      names.insert(sequence.calls[i].name);
  });
  return static_cast<int64_t>(names.size());
}

/// Room for the parameters of any kernel, and the check.
static size_t mostParameters() {
  int32_t most = 0;
  for (int32_t i = 0; i < mgq_cuda_module_table.kernel_count; ++i)
    most = std::max(most, mgq_cuda_module_table.kernels[i].param_count);
  return most + 1;
}

CudaDevice::CudaDevice(const mgq_device_request &request)
    : group(*request.group),
      context(request.place, request.ranksHere, request.group->inProcess()),
      module(context, [this](const std::string &text) { notify(text); }),
      attention(request.program->plugin_path), target(compute),
      network(*request.program, group,
              [this](const std::string &text) { return explain(text); }),
      sums(*this, network), gathers(*this, network),
      staging(compute, [this](CUevent event) { await(event); }),
      checks(
          functionCount(
              request.program->ranks[group.rank() % request.program->stages]) +
              1,
          compute),
      graphs(compute), parameters(mostParameters()) {
  // Page-locked memory that is taken in a step would wait for the GPU.
  int64_t largest = 0;
  for (int32_t i = 0; i < request.program->input_count; ++i)
    largest = std::max(largest, request.program->inputs[i].tensor.bytes);
  staging.reserve(largest);
  currentDevice = this;
}

CudaDevice::~CudaDevice() { currentDevice = nullptr; }

/// Waits until the GPU is done, but not for long.
CUresult CudaDevice::drain() {
  double end = secondsNow() + drainSeconds;
  CUresult status = cuTry(cuEventRecord, done, compute);
  if (status != CUDA_SUCCESS)
    return status;
  while ((status = cuTry(cuEventQuery, done)) == CUDA_ERROR_NOT_READY &&
         secondsNow() < end)
    usleep(50);
  return status;
}

/// After a fault of another rank messages never end.
void CudaDevice::end() {
  CUresult status = drain();
  if (status == CUDA_ERROR_NOT_READY) {
    network.abort();
    status = drain();
  }
  isAbandoned() = status != CUDA_SUCCESS;
}

/// A library's text, with the fault of the GPU that is behind it, if any.
std::string CudaDevice::explain(const std::string &text) const {
  if (graphs.isRecording()) // Nothing runs, and no event may be asked.
    return text;
  CUresult status = cuTry(cuEventQuery, done);
  if (status == CUDA_SUCCESS || status == CUDA_ERROR_NOT_READY)
    return text;
  return fmt::format("{}; the GPU's fault is: {}", text, driverText(status));
}

void CudaDevice::failDevice(const char *call, CUresult status) const {
  fail("{}: {}; the fault lies in what {} has enqueued, or earlier", call,
       driverText(status), *running ? running : "the start");
}

void CudaDevice::await(CUevent event) {
  for (int turn = 0;; ++turn) {
    CUresult status = cuTry(cuEventQuery, event);
    if (status == CUDA_SUCCESS)
      return;
    if (status != CUDA_ERROR_NOT_READY)
      failDevice("cuEventQuery", status);
    if (turn % 16 == 0) {
      group.watch();
      network.check();
    }
    if (turn < 64)
      sched_yield();
    else
      usleep(50);
  }
}

//===----------------------------------------------------------------------===//
// Memory
//===----------------------------------------------------------------------===//

std::string CudaDevice::memoryShortage(int64_t bytes) {
  size_t free = 0, total = 0;
  cuCall(cuMemGetInfo, &free, &total);
  int64_t beside = Blas::workspaceBytes() + reservedBytes;
  int64_t fits = std::max<int64_t>(static_cast<int64_t>(free) - beside, 0);
  if (bytes <= fits)
    return "";
  char texts[5][32];
  return fmt::format(
      "the plan needs {} of memory on {}, {} more than the {} that would fit "
      "({} are free, {} are for libraries); compile with the GPUs' memory in "
      "--cluster=FILE, for more GPUs, with a smaller micro-batch or "
      "--recompute=full",
      bytesText(bytes, texts[0]), name(), bytesText(bytes - fits, texts[1]),
      bytesText(fits, texts[2]),
      bytesText(static_cast<int64_t>(free), texts[3]),
      bytesText(beside, texts[4]));
}

std::byte *CudaDevice::allocate(int64_t bytes) {
  arena = std::make_unique<DeviceMemory>(bytes);
  blas.allocate();
  if (bytes)
    cuCall(cuMemsetD8Async, arena->address(), 0, static_cast<size_t>(bytes),
           compute);
  return arena->as<std::byte>();
}

void *CudaDevice::allocateHost(int64_t bytes) {
  void *memory = nullptr;
  cuCall(cuMemHostAlloc, &memory, static_cast<size_t>(bytes), 0);
  return memory;
}

void CudaDevice::freeHost(void *memory) { cuGiveBack(cuMemFreeHost, memory); }

//===----------------------------------------------------------------------===//
// Copies
//===----------------------------------------------------------------------===//

void CudaDevice::copy(void *to, const void *from, int64_t bytes) {
  if (bytes)
    cuCall(cuMemcpyDtoDAsync, addressOf(to), addressOf(from),
           static_cast<size_t>(bytes), target);
}

void CudaDevice::zero(void *to, int64_t bytes) {
  if (bytes)
    cuCall(cuMemsetD8Async, addressOf(to), 0, static_cast<size_t>(bytes),
           compute);
}

std::byte *CudaDevice::beginWrite(void *to, int64_t bytes) {
  writing = addressOf(to);
  return staging.begin(bytes);
}

void CudaDevice::endWrite() { staging.end(writing); }

void CudaDevice::read(void *to, const void *from, int64_t bytes) {
  if (bytes)
    cuCall(cuMemcpyDtoHAsync, to, addressOf(from), static_cast<size_t>(bytes),
           compute);
}

void CudaDevice::readNow(void *to, const void *from, int64_t bytes) {
  if (!bounce)
    bounce.emplace(bounceBytes);
  for (int64_t at = 0; at < bytes; at += bounceBytes) {
    int64_t size = std::min(bounceBytes, bytes - at);
    read(bounce->data(), static_cast<const std::byte *>(from) + at, size);
    done.record(compute);
    await(done);
    memcpy(static_cast<std::byte *>(to) + at, bounce->data(), size);
  }
}

void CudaDevice::synchronize() {
  leaveCall(running);
  checks.enqueueRead(compute);
  done.record(compute);
  await(done);
  checks.throwFirst();
}

//===----------------------------------------------------------------------===//
// Layer functions
//===----------------------------------------------------------------------===//

void CudaDevice::launch(int32_t kernel, int64_t blocks, void *const *params) {
  const mgq_cuda_kernel &entry = mgq_cuda_module_table.kernels[kernel];
  // Kernels were loaded with the module.
  if (!fault.empty() || blocks == 0 || rehearsing)
    return;
  try {
    std::copy_n(params, entry.param_count, parameters.begin());
    if (entry.checks)
      parameters[entry.param_count] = &checks.placeOf(running);
    if (blocks < 0 || blocks > INT32_MAX)
      fail("{} blocks", blocks);
    cuCall(cuLaunchKernel, module.function(kernel),
           static_cast<unsigned>(blocks), 1, 1,
           static_cast<unsigned>(entry.threads), 1, 1, 0, target,
           parameters.data(), nullptr);
  } catch (const std::exception &error) {
    fault = fmt::format("{} (kernel {})", error.what(), entry.name);
  }
}

void CudaDevice::multiply(const mgq_cuda_product &product,
                          const ProductOperands &operands) {
  if (!fault.empty() || (rehearsing && blas.knows(product, operands)))
    return;
  try {
    blas.run(product, operands, target);
  } catch (const std::exception &error) {
    fault = explain(error.what());
  }
}

void CudaDevice::attend(const mgq_cuda_attention_table &table,
                        void *const *tensors) {
  if (!fault.empty())
    return;
  try {
    if (rehearsing)
      return attention.plan(table, tensors);
    if (attention.run(table, tensors, target))
      return;
  } catch (const std::exception &error) {
    fault = explain(error.what());
    return;
  }
  void *params[MGQ_ATTENTION_TENSORS];
  for (int32_t i = 0; i < attentionTensors(table); ++i)
    params[i] = const_cast<void **>(tensors + i);
  for (int32_t i = 0; i < table.kernel_count; ++i)
    launch(table.kernels[i], table.blocks[i], params);
}

/// At its end all attention is planned.
void CudaDevice::rehearse(bool on) {
  rehearsing = on;
  if (on)
    return;
  size_t free = 0, total = 0;
  cuCall(cuMemGetInfo, &free, &total);
  attention.prepare(compute, static_cast<int64_t>(free) - reservedBytes);
  if (std::string note = attention.note(); !note.empty())
    notify(note);
}

void CudaDevice::notify(const std::string &text) const {
  if (group.rank() == 0)
    printError("note: {}", text);
}

void CudaDevice::leaveCall(const char *name) {
  if (!fault.empty())
    fail("{} in layer function {}", fault, name);
}

void CudaDevice::record(bool on) {
  if (on)
    graphs.clear();
  recording = on;
}

void CudaDevice::enqueueRecorded(const WorkKey &key, const char *name,
                                 const std::function<void()> &work) {
  if (!recording) {
    running = name;
    try {
      if (graphs.launch(key))
        return;
    } catch (const Error &error) {
      fail("{} in layer functions up to {}", error.what(), name);
    }
    return work();
  }
  std::string text = graphs.record(key, work);
  if (text.empty())
    return leaveCall(name);
  fault.clear(); // Of work that cannot be recorded.
  if (!std::exchange(hasToldOfGraphs, true))
    printError("note: {} does some work without CUDA graphs: {} in layer "
               "functions up to {}",
               this->name(), text, name);
}

// No exception crosses these: layer functions are not made for them.

extern "C" void mgq_cuda_launch(int32_t kernel, int64_t blocks,
                                void *const *params) {
  CudaDevice::current()->launch(kernel, blocks, params);
}

extern "C" void mgq_cuda_matmul(const mgq_cuda_product *product, const void *a,
                                const void *b, void *c, const void *added,
                                const void *bias) {
  CudaDevice::current()->multiply(*product, {a, b, c, added, bias});
}

extern "C" void mgq_cuda_attention(const mgq_cuda_attention_table *table,
                                   void *const *tensors) {
  CudaDevice::current()->attend(*table, tensors);
}

//===----------------------------------------------------------------------===//
// The optimizer
//===----------------------------------------------------------------------===//

void CudaDevice::scale(float *values, double factor, int64_t count) {
  mgq_cuda_scale(values, factor, count);
}

void CudaDevice::ensureNorms(const std::vector<Values> &arrays) {
  int64_t most = 0;
  for (const Values &array : arrays)
    most = std::max(most, array.count);
  auto count = static_cast<int64_t>(arrays.size());
  int64_t blocks = (most + MGQ_NORM_BLOCK - 1) / MGQ_NORM_BLOCK;
  if (count <= normArrays && blocks <= normBlocks)
    return;
  normArrays = std::max(normArrays, count);
  normBlocks = std::max(normBlocks, blocks);
  norms.reset();
  norms = std::make_unique<DeviceMemory>((normArrays + normBlocks) *
                                         static_cast<int64_t>(sizeof(double)));
}

void CudaDevice::squaredNorms(const std::vector<Values> &arrays, double *sums) {
  if (arrays.empty())
    return;
  ensureNorms(arrays);
  normsKey = {reinterpret_cast<uintptr_t>(&arrays), norms->address()};
  enqueueRecorded(normsKey, running, [this, &arrays] {
    auto *own = norms->as<double>();
    for (size_t i = 0; i < arrays.size(); ++i)
      mgq_cuda_sq_norm(own + i, own + normArrays, arrays[i].at,
                       arrays[i].count);
  });
  if (!recording)
    read(sums, norms->as<double>(),
         static_cast<int64_t>(arrays.size() * sizeof(double)));
}

//===----------------------------------------------------------------------===//
// Messages
//===----------------------------------------------------------------------===//

std::unique_ptr<DeviceMessages> CudaDevice::makeMessages(const RankView &view,
                                                         const mgq_op *ops,
                                                         int32_t count) {
  return makeDeviceMessages(*this, network, view, ops, count);
}

std::unique_ptr<Collective>
CudaDevice::makeAllReduce(const RankView &view, const Bucket &bucket,
                          CompressedGradients *compressed) {
  return sums.add(view, bucket, compressed);
}

std::unique_ptr<Collective> CudaDevice::makeShardGather(const RankView &view,
                                                        const Bucket &bucket) {
  return gathers.add(view, bucket);
}

void CudaDevice::connect() {
  auto wait = [this](CUevent event) { await(event); };
  network.connect(wait);
  gathers.rehearse(wait);
}

//===----------------------------------------------------------------------===//
// Times
//===----------------------------------------------------------------------===//

int32_t CudaDevice::mark() {
  if (static_cast<size_t>(markCount) == marks.size())
    marks.emplace_back(CU_EVENT_DEFAULT);
  marks[markCount].record(compute);
  return markCount++;
}

double CudaDevice::secondsAt(int32_t mark) {
  float milliseconds = 0;
  cuCall(cuEventElapsedTime, &milliseconds, marks[0], marks[mark]);
  return firstMark + static_cast<double>(milliseconds) / 1e3;
}

mgq_span CudaDevice::spanOf(CUevent began, CUevent done) const {
  auto seconds = [&](CUevent event) {
    float milliseconds = 0;
    CUresult status = cuTry(cuEventElapsedTime, &milliseconds, marks[0], event);
    if (status == CUDA_ERROR_NOT_READY)
      return -1.0;
    checkDriver(status, "cuEventElapsedTime");
    return firstMark + static_cast<double>(milliseconds) / 1e3;
  };
  return {seconds(began), seconds(done)};
}

/// The first mark says when the stream, which is idle now, was there.
void CudaDevice::clearMarks() {
  markCount = 0;
  firstMark = secondsNow();
  mark();
}

extern "C" void mgq_open_cuda_device(mgq_device_request *request) {
  try {
    request->device = std::make_unique<CudaDevice>(*request);
  } catch (const std::exception &error) {
    request->fault = error.what();
  }
}
