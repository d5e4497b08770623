//===- ApiStream.cpp - Streams, events, graphs ----------------------------===//

#include "test/device/cuda/Api.h"
#include "test/device/cuda/Settings.h"

using namespace mgq::device;

static constexpr const char *streamKind = "CUDA stream";
static constexpr const char *eventKind = "CUDA event";
static constexpr const char *graphKind = "CUDA graph";
static constexpr const char *executableKind = "CUDA executable graph";

//===----------------------------------------------------------------------===//
// Streams
//===----------------------------------------------------------------------===//

MGQ_API cuStreamCreateWithPriority(CUstream *handle, unsigned flags,
                                   int priority) {
  MGQ_ENTER(Context);
  if (flags & ~unsigned(CU_STREAM_NON_BLOCKING))
    return CUDA_ERROR_INVALID_VALUE;
  StreamState *made =
      makeStream(currentDevice(), !(flags & CU_STREAM_NON_BLOCKING), priority);
  handleMade(streamKind, made);
  *handle = reinterpret_cast<CUstream>(made);
  return CUDA_SUCCESS;
}

MGQ_API cuStreamCreate(CUstream *handle, unsigned flags) {
  return cuStreamCreateWithPriority(handle, flags, 0);
}

MGQ_API cuStreamDestroy(CUstream handle) {
  MGQ_ENTER(Context);
  if (!handleGone(streamKind, handle))
    return CUDA_ERROR_INVALID_HANDLE;
  closeStream(reinterpret_cast<StreamState *>(handle));
  return CUDA_SUCCESS;
}

MGQ_API cuStreamGetPriority(CUstream handle, int *priority) {
  MGQ_ENTER(Context);
  StreamState *stream;
  if (CUresult status = findStream(handle, stream))
    return status;
  *priority = stream->priority;
  return CUDA_SUCCESS;
}

/// Whether a capture forbids to ask how far a stream is, or to wait for it.
static bool asksOfCapture(StreamState *stream) {
  if (stream->capture)
    stream->capture->isValid = false;
  return captureForbidsWaiting() || stream->capture;
}

MGQ_API cuStreamSynchronize(CUstream handle) {
  MGQ_ENTER(Context);
  StreamState *stream;
  if (CUresult status = findStream(handle, stream))
    return status;
  if (asksOfCapture(stream))
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  synchronize(stream);
  return CUresult(stickyFault(stream->device));
}

MGQ_API cuStreamQuery(CUstream handle) {
  MGQ_ENTER(Context);
  StreamState *stream;
  if (CUresult status = findStream(handle, stream))
    return status;
  if (asksOfCapture(stream))
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  bool done = query(stream);
  if (int fault = stickyFault(stream->device))
    return CUresult(fault);
  return done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

MGQ_API cuLaunchHostFunc(CUstream handle, CUhostFn function, void *data) {
  MGQ_ENTER(Context);
  StreamState *stream;
  if (CUresult status = findStream(handle, stream))
    return status;
  return enqueue(
      stream, "host function",
      [=] {
        function(data);
        return 0;
      },
      Run::Freely);
}

//===----------------------------------------------------------------------===//
// Events
//===----------------------------------------------------------------------===//

static CUresult findEvent(CUevent handle, EventState *&event) {
  if (!handleExists(eventKind, handle)) {
    report("there is no such CUDA event");
    return CUDA_ERROR_INVALID_HANDLE;
  }
  event = reinterpret_cast<EventState *>(handle);
  return CUDA_SUCCESS;
}

MGQ_API cuEventCreate(CUevent *handle, unsigned flags) {
  MGQ_ENTER(Context);
  auto *made = new EventState;
  made->device = currentDevice();
  made->timing = !(flags & CU_EVENT_DISABLE_TIMING);
  handleMade(eventKind, made);
  *handle = reinterpret_cast<CUevent>(made);
  return CUDA_SUCCESS;
}

MGQ_API cuEventDestroy(CUevent handle) {
  MGQ_ENTER(Context);
  if (!handleGone(eventKind, handle))
    return CUDA_ERROR_INVALID_HANDLE;
  delete reinterpret_cast<EventState *>(handle);
  return CUDA_SUCCESS;
}

MGQ_API cuEventRecordWithFlags(CUevent handle, CUstream streamHandle,
                               unsigned) {
  MGQ_ENTER(Context);
  EventState *event;
  StreamState *stream;
  if (CUresult status = findEvent(handle, event))
    return status;
  if (CUresult status = findStream(streamHandle, stream))
    return status;
  if (event->device != stream->device)
    return CUDA_ERROR_INVALID_HANDLE;
  record(event, stream);
  return CUDA_SUCCESS;
}

MGQ_API cuEventRecord(CUevent handle, CUstream stream) {
  return cuEventRecordWithFlags(handle, stream, 0);
}

MGQ_API cuStreamWaitEvent(CUstream streamHandle, CUevent handle, unsigned) {
  MGQ_ENTER(Context);
  EventState *event;
  StreamState *stream;
  if (CUresult status = findEvent(handle, event))
    return status;
  if (CUresult status = findStream(streamHandle, stream))
    return status;
  return isSkippedWait() ? CUDA_SUCCESS : waitFor(stream, event);
}

MGQ_API cuEventSynchronize(CUevent handle) {
  MGQ_ENTER(Context);
  EventState *event;
  if (CUresult status = findEvent(handle, event))
    return status;
  if (event->capture)
    return CUDA_ERROR_CAPTURED_EVENT;
  if (captureForbidsWaiting())
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  synchronize(event);
  return CUresult(stickyFault(event->device));
}

MGQ_API cuEventQuery(CUevent handle) {
  MGQ_ENTER(Context);
  EventState *event;
  if (CUresult status = findEvent(handle, event))
    return status;
  if (event->capture)
    return CUDA_ERROR_CAPTURED_EVENT;
  if (captureForbidsWaiting())
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  bool done = query(event);
  if (int fault = stickyFault(event->device))
    return CUresult(fault);
  return done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

MGQ_API cuEventElapsedTime(float *milliseconds, CUevent from, CUevent to) {
  MGQ_ENTER(Context);
  EventState *first, *second;
  if (CUresult status = findEvent(from, first))
    return status;
  if (CUresult status = findEvent(to, second))
    return status;
  if (!first->timing || !second->timing || !first->seconds || !second->seconds)
    return CUDA_ERROR_INVALID_HANDLE;
  if (!isDone(first->token) || !isDone(second->token))
    return CUDA_ERROR_NOT_READY;
  *milliseconds = float((*second->seconds - *first->seconds) * 1e3);
  return CUDA_SUCCESS;
}

//===----------------------------------------------------------------------===//
// Graphs
//===----------------------------------------------------------------------===//

MGQ_API cuStreamBeginCapture(CUstream handle, CUstreamCaptureMode mode) {
  MGQ_ENTER(Context);
  StreamState *stream;
  if (CUresult status = findStream(handle, stream))
    return status;
  return beginCapture(stream, mode);
}

MGQ_API cuStreamEndCapture(CUstream handle, CUgraph *graph) {
  MGQ_ENTER(Context);
  *graph = nullptr;
  StreamState *stream;
  if (CUresult status = findStream(handle, stream))
    return status;
  std::unique_ptr<GraphState> captured;
  if (CUresult status = endCapture(stream, captured))
    return status;
  *graph = reinterpret_cast<CUgraph>(captured.release());
  handleMade(graphKind, *graph);
  return CUDA_SUCCESS;
}

MGQ_API cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus *status) {
  MGQ_ENTER(Context);
  StreamState *stream;
  if (CUresult result = findStream(handle, stream))
    return result;
  *status = !stream->capture           ? CU_STREAM_CAPTURE_STATUS_NONE
            : stream->capture->isValid ? CU_STREAM_CAPTURE_STATUS_ACTIVE
                                       : CU_STREAM_CAPTURE_STATUS_INVALIDATED;
  return CUDA_SUCCESS;
}

MGQ_API cuGraphGetNodes(CUgraph handle, CUgraphNode *nodes, size_t *count) {
  MGQ_ENTER(Context);
  if (!handleExists(graphKind, handle) || nodes)
    return CUDA_ERROR_NOT_SUPPORTED;
  *count = reinterpret_cast<GraphState *>(handle)->nodes.size();
  return CUDA_SUCCESS;
}

MGQ_API cuGraphInstantiateWithFlags(CUgraphExec *handle, CUgraph graph,
                                    unsigned long long) {
  MGQ_ENTER(Context);
  if (!handleExists(graphKind, graph)) {
    report("there is no such CUDA graph");
    return CUDA_ERROR_INVALID_HANDLE;
  }
  auto *made = new ExecutableGraph;
  made->graph = *reinterpret_cast<GraphState *>(graph);
  handleMade(executableKind, made);
  *handle = reinterpret_cast<CUgraphExec>(made);
  return CUDA_SUCCESS;
}

MGQ_API cuGraphDestroy(CUgraph handle) {
  MGQ_ENTER(Context);
  if (!handleGone(graphKind, handle))
    return CUDA_ERROR_INVALID_HANDLE;
  delete reinterpret_cast<GraphState *>(handle);
  return CUDA_SUCCESS;
}

MGQ_API cuGraphLaunch(CUgraphExec handle, CUstream streamHandle) {
  MGQ_ENTER(Context);
  StreamState *stream;
  if (CUresult status = findStream(streamHandle, stream))
    return status;
  if (!handleExists(executableKind, handle)) {
    report("there is no such CUDA executable graph");
    return CUDA_ERROR_INVALID_HANDLE;
  }
  if (stream->capture)
    return CUDA_ERROR_NOT_SUPPORTED;
  return launchGraph(*reinterpret_cast<ExecutableGraph *>(handle), stream);
}

MGQ_API cuGraphUpload(CUgraphExec handle, CUstream) {
  MGQ_ENTER(Context);
  return handleExists(executableKind, handle) ? CUDA_SUCCESS
                                              : CUDA_ERROR_INVALID_HANDLE;
}

MGQ_API cuGraphExecDestroy(CUgraphExec handle) {
  MGQ_ENTER(Context);
  if (!handleGone(executableKind, handle))
    return CUDA_ERROR_INVALID_HANDLE;
  auto *executable = reinterpret_cast<ExecutableGraph *>(handle);
  for (StreamState *lane : executable->lanes)
    closeStream(lane);
  delete executable;
  return CUDA_SUCCESS;
}
