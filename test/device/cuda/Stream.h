//===- Stream.h - Streams, events, graphs -----------------------*- C++ -*-===//
#ifndef MGQ_TEST_DEVICE_CUDA_STREAM_H
#define MGQ_TEST_DEVICE_CUDA_STREAM_H

#include "test/device/cuda/Memory.h"
#include "test/device/cuda/Report.h"
#include <condition_variable>
#include <cuda.h>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

namespace mgq::device {

/// What a stream runs. Returns a CUresult that ends the context, 0: none.
using Work = std::function<int()>;

struct StreamState;

/// Done when its stream has finished operation `time`.
struct Token {
  StreamState *stream = nullptr;
  uint32_t time = 0;
};

/// How an operation runs.
enum class Run {
  Exclusive, ///< Alone in the process; may touch device memory.
  Freely     ///< Beside others, because it may wait; uses exclusively().
};

struct Operation {
  std::string name;
  Work work;
  Run how = Run::Exclusive;
  std::vector<Token> waits;
  Clock clock;
  uint32_t number = 0;
};

/// What was recorded instead of run. An operation is enqueued on the lane of
/// the stream it was given to, after the nodes it depends on.
struct GraphNode {
  std::string name;
  Work work;
  Run how;
  unsigned lane;
  std::vector<unsigned> after;
};

struct GraphState {
  std::vector<GraphNode> nodes;
  unsigned lanes = 1; ///< 0 is the stream on which the capture began.
};

/// An executable graph. A launch of it comes after the one before.
struct ExecutableGraph {
  GraphState graph;
  std::vector<StreamState *> lanes; ///< Without that of the launch.
  Token last;                       ///< Of the last launch,
  Clock clock;                      ///< what is before its end.
};

/// A capture that is going on: where in the graph each stream is.
struct Capture {
  std::unique_ptr<GraphState> graph = std::make_unique<GraphState>();
  StreamState *origin = nullptr;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  std::thread::id thread; ///< That has begun it.
  std::map<StreamState *, std::vector<unsigned>> frontier;
  std::map<StreamState *, unsigned> lanes;
  bool isValid = true;
};

struct StreamState {
  int device = 0;
  uint32_t id = 0;
  bool blocking = true; ///< Ordered with the legacy stream.
  int priority = 0;
  std::deque<Operation> queue;
  uint32_t enqueued = 0, completed = 0;
  Clock clock;
  std::shared_ptr<Capture> capture;
  std::thread thread;
  bool closing = false;
};

struct EventState {
  int device = 0;
  bool timing = true;
  Token token;
  Clock clock;
  std::shared_ptr<double> seconds; ///< When it happened.
  std::shared_ptr<Capture> capture;
  std::vector<unsigned> nodes; ///< In `capture`.
};

/// Operations that run in the order in which they were enqueued, on whatever
/// streams: those of a communicator. Nobody may rely on that for memory, so
/// clocks do not say it.
struct Chain {
  Token last;
  std::weak_ptr<Capture> capture;
  unsigned node = 0; ///< Its last in `capture`.
};

/// A device's fault, which all later calls meet; 0: none.
MGQ_DEVICE_EXPORT int stickyFault(int device);
bool anyStickyFault();
void setStickyFault(int device, int code);

StreamState *makeStream(int device, bool blocking, int priority);
/// Finishes its work first.
void closeStream(StreamState *stream);
/// The stream of a handle of `device`, null: there is none. The default stream
/// is made when first used.
StreamState *streamOf(CUstream handle, int device);

/// Puts an operation at the end of a stream, or into the graph being captured.
CUresult enqueue(StreamState *stream, std::string name, Work work,
                 Run how = Run::Exclusive,
                 const std::vector<Chain *> &chains = {});
/// For other stand-ins: on a handle of the current context.
MGQ_DEVICE_EXPORT int enqueueOn(CUstream stream, const std::string &name,
                                Work work, Run how,
                                const std::vector<Chain *> &chains = {});
/// The device of the calling thread's context, -1: it has none.
MGQ_DEVICE_EXPORT int currentDevice();
/// Runs a part of a Run::Freely operation as an exclusive one.
MGQ_DEVICE_EXPORT void exclusively(const std::function<void()> &part);
/// Where the running operation, of the calling thread, stands.
MGQ_DEVICE_EXPORT std::string runningOperation();
/// touch(), where what is wrong is reported and the result false.
MGQ_DEVICE_EXPORT bool touchOrReport(const void *address, int64_t bytes,
                                     mgq_twin_access_kind kind);

void record(EventState *event, StreamState *stream);
CUresult waitFor(StreamState *stream, EventState *event);
MGQ_DEVICE_EXPORT bool isDone(const Token &token);
/// The host has seen what the event, stream or device has done.
void synchronize(EventState *event);
void synchronize(StreamState *stream);
void synchronizeDevice(int device);
bool query(EventState *event);
bool query(StreamState *stream);

CUresult beginCapture(StreamState *stream, CUstreamCaptureMode mode);
CUresult endCapture(StreamState *stream, std::unique_ptr<GraphState> &graph);
/// Whether a capture, which is invalid then, forbids the calling thread what
/// may wait for streams, or asks how far they are.
bool captureForbidsWaiting();
CUresult launchGraph(ExecutableGraph &executable, StreamState *stream);

/// Reports operations that are still queued.
void reportUnfinishedWork();

} // namespace mgq::device

#endif // MGQ_TEST_DEVICE_CUDA_STREAM_H
