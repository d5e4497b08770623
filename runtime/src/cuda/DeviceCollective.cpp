//===- DeviceCollective.cpp - A collective on a stream of a GPU -----------===//

#include "runtime/src/cuda/DeviceCollective.h"
#include "runtime/src/cuda/CudaDevice.h"
#include "runtime/src/cuda/Network.h"
#include <utility>

using namespace mgq::rt;

DeviceCollective::DeviceCollective(CudaDevice &device)
    : device(device), done(device.timeFlags()) {
  if (device.timesMessages())
    began.emplace(device.timeFlags());
}

void DeviceCollective::setReady() { ready.record(device.stream()); }

void DeviceCollective::enqueueOn(Link &link,
                                 const std::function<void()> &work) {
  ready.before(link.stream);
  if (began)
    began->record(link.stream);
  isFresh = true;
  work();
  done.record(link.stream);
}

void DeviceCollective::join() { done.before(device.stream()); }

mgq_span DeviceCollective::span() {
  if (!began || !std::exchange(isFresh, false))
    return {-1, -1};
  return device.spanOf(*began, done);
}
