//===- Stream.cpp - Streams and events ------------------------------------===//
//
// Each stream is a queue with a thread. Operations that touch device memory run
// one at a time in the process; which of those that could run does run is left
// to chance and to seeded delays. Faults in ordering are found by clocks, not
// by luck: an operation takes its stream's vector clock when it is enqueued,
// recording an event copies it, waiting joins it, and what the host has
// synchronised with joins whatever it enqueues later on that device.
//
//===----------------------------------------------------------------------===//

#include "test/device/cuda/Stream.h"
#include "test/device/cuda/Settings.h"
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <unistd.h>

using namespace mgq::device;

namespace {
struct Device {
  Clock host; ///< What the host has seen done.
  StreamState *legacy = nullptr;
  int fault = 0;
};

struct State {
  std::mutex mutex; ///< Of all below.
  std::condition_variable changed;
  std::vector<StreamState *> streams; ///< all ever made, by id
  std::map<int, Device> devices;
  std::vector<std::shared_ptr<Capture>> captures;
  std::mutex execution; ///< Held by what touches device memory.
};

thread_local const Operation *running = nullptr;
thread_local uint32_t runningStream = 0;
} // namespace

static State &state() {
  static auto *result = new State;
  return *result;
}

int mgq::device::stickyFault(int device) {
  std::lock_guard<std::mutex> lock(state().mutex);
  return state().devices[device].fault;
}

bool mgq::device::anyStickyFault() {
  std::lock_guard<std::mutex> lock(state().mutex);
  for (const auto &[number, device] : state().devices)
    if (device.fault)
      return true;
  return false;
}

void mgq::device::setStickyFault(int device, int code) {
  std::lock_guard<std::mutex> lock(state().mutex);
  int &fault = state().devices[device].fault;
  if (fault == 0)
    fault = code;
  state().changed.notify_all();
}

//===----------------------------------------------------------------------===//
// The thread of a stream
//===----------------------------------------------------------------------===//

static bool isDoneLocked(const Token &token) {
  return !token.stream || token.stream->completed >= token.time;
}

static void sleepSometimes(unsigned &random) {
  if (settings().delay == 0)
    return;
  unsigned draw = unsigned(rand_r(&random));
  if (draw % 16 == 0)
    usleep(draw / 16 % unsigned(settings().delay));
}

/// Runs the operation at the front of a stream's queue.
static int runOperation(const Operation &operation, StreamState &stream) {
  running = &operation;
  runningStream = stream.id;
  int fault = 0;
  if (operation.how == Run::Freely) {
    fault = operation.work();
  } else {
    std::lock_guard<std::mutex> alone(state().execution);
    beginOperation(operation.number, &operation.clock);
    fault = operation.work();
    beginOperation(0, nullptr);
  }
  running = nullptr;
  return fault;
}

static void runStream(StreamState *stream) {
  State &s = state();
  unsigned random = unsigned(settings().seed * 977 + stream->id);
  std::unique_lock<std::mutex> lock(s.mutex);
  while (true) {
    s.changed.wait(lock, [&] {
      if (stream->queue.empty())
        return stream->closing;
      for (const Token &token : stream->queue.front().waits)
        if (!isDoneLocked(token))
          return false;
      return true;
    });
    if (stream->queue.empty())
      return;
    Operation operation = std::move(stream->queue.front());
    stream->queue.pop_front();
    bool isBroken = s.devices[stream->device].fault != 0;
    lock.unlock();
    if (!isBroken && operation.work) {
      sleepSometimes(random);
      if (int fault = runOperation(operation, *stream))
        setStickyFault(stream->device, fault);
    }
    operation.work = nullptr; // What it holds goes without the lock.
    lock.lock();
    ++stream->completed;
    s.changed.notify_all();
  }
}

StreamState *mgq::device::makeStream(int device, bool blocking, int priority) {
  State &s = state();
  std::lock_guard<std::mutex> lock(s.mutex);
  auto *stream = new StreamState;
  stream->device = device;
  stream->blocking = blocking;
  stream->priority = priority;
  stream->id = uint32_t(s.streams.size());
  s.streams.push_back(stream);
  stream->thread = std::thread(runStream, stream);
  return stream;
}

void mgq::device::closeStream(StreamState *stream) {
  {
    std::lock_guard<std::mutex> lock(state().mutex);
    stream->closing = true;
    state().changed.notify_all();
  }
  stream->thread.join();
}

StreamState *mgq::device::streamOf(CUstream handle, int device) {
  if (handle == nullptr || handle == CU_STREAM_LEGACY) {
    {
      std::lock_guard<std::mutex> lock(state().mutex);
      if (StreamState *legacy = state().devices[device].legacy)
        return legacy;
    }
    StreamState *made = makeStream(device, true, 0);
    std::lock_guard<std::mutex> lock(state().mutex);
    return state().devices[device].legacy = made;
  }
  if (handle == CU_STREAM_PER_THREAD || !handleExists("CUDA stream", handle))
    return nullptr;
  return reinterpret_cast<StreamState *>(handle);
}

//===----------------------------------------------------------------------===//
// Enqueueing
//===----------------------------------------------------------------------===//

/// The default stream waits for all blocking streams, and they for it.
static void addLegacyOrder(StreamState *stream, Operation &operation) {
  Device &device = state().devices[stream->device];
  if (!device.legacy || !stream->blocking)
    return;
  auto wait = [&](StreamState *other) {
    if (other == stream || other->enqueued == 0)
      return;
    operation.waits.push_back({other, other->enqueued});
    join(stream->clock, other->clock);
  };
  if (stream != device.legacy)
    return wait(device.legacy);
  for (StreamState *other : state().streams)
    if (other->device == stream->device && other->blocking)
      wait(other);
}

/// Returns the operation's place on its stream.
static Token enqueueLocked(StreamState *stream, Operation operation) {
  addLegacyOrder(stream, operation);
  join(stream->clock, state().devices[stream->device].host);
  if (stream->clock.size() <= stream->id)
    stream->clock.resize(stream->id + 1);
  stream->clock[stream->id] = ++stream->enqueued;
  operation.clock = stream->clock;
  operation.number =
      traceOperation({stream->id, stream->enqueued, operation.name});
  stream->queue.push_back(std::move(operation));
  state().changed.notify_all();
  return {stream, stream->enqueued};
}

/// Work of the default stream would wait for what is captured on blocking ones.
static bool invalidatesCapturesLocked(StreamState *stream) {
  if (stream != state().devices[stream->device].legacy)
    return false;
  bool invalidates = false;
  for (StreamState *other : state().streams)
    if (other->device == stream->device && other->blocking && other->capture) {
      other->capture->isValid = false;
      invalidates = true;
    }
  return invalidates;
}

static void captureLocked(StreamState *stream, std::string name, Work work,
                          Run how, const std::vector<Chain *> &chains) {
  Capture &capture = *stream->capture;
  std::vector<unsigned> &frontier = capture.frontier[stream];
  std::vector<unsigned> after = frontier;
  auto number = unsigned(capture.graph->nodes.size());
  for (Chain *chain : chains) {
    if (chain->capture.lock() == stream->capture)
      after.push_back(chain->node);
    chain->capture = stream->capture;
    chain->node = number;
  }
  capture.graph->nodes.push_back({std::move(name), std::move(work), how,
                                  capture.lanes.at(stream), std::move(after)});
  frontier = {number};
}

CUresult mgq::device::enqueue(StreamState *stream, std::string name, Work work,
                              Run how, const std::vector<Chain *> &chains) {
  std::lock_guard<std::mutex> lock(state().mutex);
  if (invalidatesCapturesLocked(stream))
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  if (stream->capture && !stream->capture->isValid)
    return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (stream->capture) {
    captureLocked(stream, std::move(name), std::move(work), how, chains);
    return CUDA_SUCCESS;
  }
  Operation operation;
  operation.name = std::move(name);
  operation.work = std::move(work);
  operation.how = how;
  for (Chain *chain : chains)
    operation.waits.push_back(chain->last);
  Token token = enqueueLocked(stream, std::move(operation));
  for (Chain *chain : chains)
    chain->last = token;
  return CUDA_SUCCESS;
}

void mgq::device::exclusively(const std::function<void()> &part) {
  std::lock_guard<std::mutex> alone(state().execution);
  beginOperation(running->number, &running->clock);
  part();
  beginOperation(0, nullptr);
}

std::string mgq::device::runningOperation() {
  return running->name + " on stream " + std::to_string(runningStream);
}

bool mgq::device::touchOrReport(const void *address, int64_t bytes,
                                mgq_twin_access_kind kind) {
  std::string fault = touch(address, bytes, kind);
  if (fault.empty())
    return true;
  report(runningOperation() + (kind == MGQ_TWIN_READ ? " reads " : " writes ") +
         fault);
  return false;
}

//===----------------------------------------------------------------------===//
// Events and synchronisation
//===----------------------------------------------------------------------===//

static double secondsNow() {
  using Clock = std::chrono::steady_clock;
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

void mgq::device::record(EventState *event, StreamState *stream) {
  std::lock_guard<std::mutex> lock(state().mutex);
  if (stream->capture) {
    event->capture = stream->capture;
    event->nodes = stream->capture->frontier[stream];
    return;
  }
  event->capture = nullptr;
  auto seconds = std::make_shared<double>(0);
  event->seconds = seconds;
  Operation operation;
  operation.name = "event record";
  operation.how = Run::Freely;
  operation.work = [seconds] {
    *seconds = secondsNow();
    return 0;
  };
  event->token = enqueueLocked(stream, std::move(operation));
  event->clock = stream->clock;
}

/// The stream becomes part of the event's capture.
static CUresult joinCapture(StreamState *stream, EventState *event) {
  std::shared_ptr<Capture> capture = event->capture;
  if (stream->capture && stream->capture != capture)
    return CUDA_ERROR_STREAM_CAPTURE_MERGE;
  stream->capture = capture;
  if (!capture->lanes.count(stream))
    capture->lanes[stream] = capture->graph->lanes++;
  std::vector<unsigned> &frontier = capture->frontier[stream];
  frontier.insert(frontier.end(), event->nodes.begin(), event->nodes.end());
  return CUDA_SUCCESS;
}

CUresult mgq::device::waitFor(StreamState *stream, EventState *event) {
  std::lock_guard<std::mutex> lock(state().mutex);
  if (event->capture)
    return event->capture->graph ? joinCapture(stream, event)
                                 : CUDA_ERROR_CAPTURED_EVENT;
  if (stream->capture)
    return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  if (!event->token.stream)
    return CUDA_SUCCESS; // Never recorded: nothing to wait for.
  join(stream->clock, event->clock);
  Operation operation;
  operation.name = "event wait";
  operation.how = Run::Freely;
  operation.waits = {event->token};
  enqueueLocked(stream, std::move(operation));
  return CUDA_SUCCESS;
}

bool mgq::device::isDone(const Token &token) {
  std::lock_guard<std::mutex> lock(state().mutex);
  return isDoneLocked(token);
}

static void awaitLocked(std::unique_lock<std::mutex> &lock,
                        const Token &token) {
  state().changed.wait(lock, [&] { return isDoneLocked(token); });
}

void mgq::device::synchronize(EventState *event) {
  std::unique_lock<std::mutex> lock(state().mutex);
  Clock clock = event->clock;
  awaitLocked(lock, event->token);
  join(state().devices[event->device].host, clock);
}

void mgq::device::synchronize(StreamState *stream) {
  std::unique_lock<std::mutex> lock(state().mutex);
  Clock clock = stream->clock;
  awaitLocked(lock, {stream, stream->enqueued});
  join(state().devices[stream->device].host, clock);
}

void mgq::device::synchronizeDevice(int device) {
  std::vector<StreamState *> streams;
  {
    std::lock_guard<std::mutex> lock(state().mutex);
    for (StreamState *stream : state().streams)
      if (stream->device == device)
        streams.push_back(stream);
  }
  for (StreamState *stream : streams)
    synchronize(stream);
}

bool mgq::device::query(EventState *event) {
  std::lock_guard<std::mutex> lock(state().mutex);
  if (!isDoneLocked(event->token))
    return false;
  join(state().devices[event->device].host, event->clock);
  return true;
}

bool mgq::device::query(StreamState *stream) {
  std::lock_guard<std::mutex> lock(state().mutex);
  if (!isDoneLocked({stream, stream->enqueued}))
    return false;
  join(state().devices[stream->device].host, stream->clock);
  return true;
}

void mgq::device::reportUnfinishedWork() {
  std::string left;
  {
    std::lock_guard<std::mutex> lock(state().mutex);
    for (StreamState *stream : state().streams)
      if (stream->completed < stream->enqueued &&
          state().devices[stream->device].fault == 0)
        left += (left.empty() ? "" : ", ") +
                std::to_string(stream->enqueued - stream->completed) +
                " operations on stream " + std::to_string(stream->id);
  }
  if (!left.empty())
    report("the program ends while work is still queued: " + left);
}

//===----------------------------------------------------------------------===//
// Graphs
//===----------------------------------------------------------------------===//

CUresult mgq::device::beginCapture(StreamState *stream,
                                   CUstreamCaptureMode mode) {
  std::lock_guard<std::mutex> lock(state().mutex);
  if (stream->capture || stream == state().devices[stream->device].legacy)
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  auto capture = std::make_shared<Capture>();
  capture->origin = stream;
  capture->mode = mode;
  capture->thread = std::this_thread::get_id();
  capture->lanes[stream] = 0;
  capture->frontier[stream] = {};
  stream->capture = capture;
  state().captures.push_back(capture);
  return CUDA_SUCCESS;
}

/// Whether every node is before the origin's frontier.
static bool isJoined(const Capture &capture) {
  const std::vector<GraphNode> &nodes = capture.graph->nodes;
  std::vector<bool> reached(nodes.size());
  auto reach = [&](const std::vector<unsigned> &list) {
    for (unsigned node : list)
      reached[node] = true;
  };
  reach(capture.frontier.at(capture.origin));
  for (size_t i = nodes.size(); i-- > 0;)
    if (reached[i])
      reach(nodes[i].after);
  for (bool each : reached)
    if (!each)
      return false;
  return true;
}

CUresult mgq::device::endCapture(StreamState *stream,
                                 std::unique_ptr<GraphState> &graph) {
  std::lock_guard<std::mutex> lock(state().mutex);
  std::shared_ptr<Capture> capture = stream->capture;
  if (!capture)
    return CUDA_ERROR_ILLEGAL_STATE;
  if (capture->origin != stream)
    return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
      capture->thread != std::this_thread::get_id())
    return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  for (auto &[member, lane] : capture->lanes)
    member->capture = nullptr;
  auto &captures = state().captures;
  captures.erase(std::find(captures.begin(), captures.end(), capture));
  if (!capture->isValid)
    return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (!isJoined(*capture))
    return CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
  graph = std::move(capture->graph);
  return CUDA_SUCCESS;
}

bool mgq::device::captureForbidsWaiting() {
  std::lock_guard<std::mutex> lock(state().mutex);
  bool forbids = false;
  for (const std::shared_ptr<Capture> &capture : state().captures)
    if (capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL ||
        (capture->mode == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL &&
         capture->thread == std::this_thread::get_id())) {
      capture->isValid = false;
      forbids = true;
    }
  return forbids;
}

/// Nodes run on their lanes. Lane 0 is the stream of the launch; the others
/// begin after what that has been given, and it ends after them.
CUresult mgq::device::launchGraph(ExecutableGraph &executable,
                                  StreamState *stream) {
  const GraphState &graph = executable.graph;
  std::vector<StreamState *> &lanes = executable.lanes;
  while (lanes.size() + 1 < graph.lanes)
    lanes.push_back(makeStream(stream->device, /*blocking=*/false, 0));
  std::lock_guard<std::mutex> lock(state().mutex);
  auto streamOfLane = [&](unsigned lane) {
    return lane == 0 ? stream : lanes[lane - 1];
  };
  auto follow = [](StreamState *later, StreamState *earlier, const Clock &clock,
                   uint32_t time) {
    Operation operation;
    operation.name = "graph order";
    operation.how = Run::Freely;
    operation.waits = {{earlier, time}};
    join(later->clock, clock);
    enqueueLocked(later, std::move(operation));
  };
  if (executable.last.stream && executable.last.stream != stream)
    follow(stream, executable.last.stream, executable.clock,
           executable.last.time);
  for (unsigned lane = 1; lane < graph.lanes; ++lane)
    follow(streamOfLane(lane), stream, Clock(stream->clock), stream->enqueued);
  std::vector<Token> tokens;
  std::vector<Clock> clocks;
  for (const GraphNode &node : graph.nodes) {
    StreamState *on = streamOfLane(node.lane);
    Operation operation;
    operation.name = node.name;
    operation.work = node.work;
    operation.how = node.how;
    for (unsigned before : node.after) {
      operation.waits.push_back(tokens[before]);
      join(on->clock, clocks[before]);
    }
    tokens.push_back(enqueueLocked(on, std::move(operation)));
    clocks.push_back(on->clock);
  }
  for (unsigned lane = 1; lane < graph.lanes; ++lane) {
    StreamState *other = streamOfLane(lane);
    follow(stream, other, Clock(other->clock), other->enqueued);
  }
  executable.last = {stream, stream->enqueued};
  executable.clock = stream->clock;
  return CUDA_SUCCESS;
}
