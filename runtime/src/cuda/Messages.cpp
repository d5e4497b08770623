//===- Messages.cpp - Between arenas of GPUs ------------------------------===//

#include "runtime/src/cuda/Messages.h"
#include "runtime/src/common/Error.h"

using namespace mgq::rt;

namespace {
class Messages : public DeviceMessages {
public:
  Messages(CudaDevice &device, Network &network, const RankView &view,
           const mgq_op *ops, int32_t count);
  void begin(int32_t index, std::byte *place) override;
  void wait(int32_t index) override;
  mgq_span span(int32_t index) override;

private:
  void pair(int32_t index, int32_t count);
  void beginLocal(int32_t index, std::byte *place);
  bool isLocal(int32_t index) const { return channels[index] < 0; }

  CudaDevice &device;
  Network &network;
  const mgq_op *ops;
  const ChannelOfOp &channels;
  Event point;                              ///< In what is enqueued to compute.
  std::vector<std::unique_ptr<Event>> done; ///< By op, of those for others.
  std::vector<std::unique_ptr<Event>> began; ///< The same, where times are.
  std::vector<uint8_t> isFresh;              ///< Begun since span().
  // Of those to itself: the op of the other side; where they are, until both
  // have begun.
  std::vector<int32_t> others;
  std::vector<std::byte *> places;
};
} // namespace

static bool isMessage(const mgq_op &op) {
  return op.kind == MGQ_OP_SEND || op.kind == MGQ_OP_RECEIVE;
}

Messages::Messages(CudaDevice &device, Network &network, const RankView &view,
                   const mgq_op *ops, int32_t count)
    : device(device), network(network), ops(ops),
      channels(network.channels().channelsOf(view.stage, ops)), done(count),
      began(count), isFresh(count), others(count, -1), places(count) {
  for (int32_t i = 0; i < count; ++i) {
    if (!isMessage(ops[i]))
      continue;
    if (isLocal(i)) {
      pair(i, count);
      continue;
    }
    done[i] = std::make_unique<Event>(device.timeFlags());
    if (device.timesMessages())
      began[i] = std::make_unique<Event>(device.timeFlags());
  }
}

/// Finds the other side of a message to this rank.
void Messages::pair(int32_t index, int32_t count) {
  const mgq_op &op = ops[index];
  for (int32_t i = 0; i < count; ++i)
    if (isMessage(ops[i]) && ops[i].kind != op.kind && ops[i].tag == op.tag &&
        ops[i].peer == op.peer && ops[i].bytes == op.bytes)
      others[index] = i;
  if (others[index] < 0)
    fail("the program's tables are damaged: op {} of kind {}: its other side",
         index, op.kind);
}

void Messages::beginLocal(int32_t index, std::byte *place) {
  int32_t other = others[index];
  std::byte *&otherPlace = places[other];
  if (!otherPlace) {
    places[index] = place;
    return;
  }
  bool sends = ops[index].kind == MGQ_OP_SEND;
  device.copy(sends ? otherPlace : place, sends ? place : otherPlace,
              ops[index].bytes);
  otherPlace = nullptr;
}

void Messages::begin(int32_t index, std::byte *place) {
  const mgq_op &op = ops[index];
  CUstream stream = isLocal(index) ? device.stream()
                                   : network.channel(channels[index]).stream;
  for (int32_t i = 0; i < op.wait_count; ++i)
    if (const std::unique_ptr<Event> &earlier = done[op.waits[i]])
      earlier->before(stream);
  if (isLocal(index))
    return beginLocal(index, place);
  point.record(device.stream());
  point.before(stream);
  if (began[index])
    began[index]->record(stream);
  isFresh[index] = 1;
  auto bytes = static_cast<size_t>(op.bytes);
  Communicator &communicator = network.channel(channels[index]).communicator;
  // The sender is member 0.
  if (bytes)
    network.run([&] {
      if (op.kind == MGQ_OP_SEND)
        communicator.send(place, bytes, ncclUint8, 1, stream);
      else
        communicator.receive(place, bytes, ncclUint8, 0, stream);
    });
  done[index]->record(stream);
}

void Messages::wait(int32_t index) {
  if (!isLocal(index))
    done[index]->before(device.stream());
}

mgq_span Messages::span(int32_t index) {
  if (!began[index] || !std::exchange(isFresh[index], 0))
    return {-1, -1};
  return device.spanOf(*began[index], *done[index]);
}

std::unique_ptr<DeviceMessages>
mgq::rt::makeDeviceMessages(CudaDevice &device, Network &network,
                            const RankView &view, const mgq_op *ops,
                            int32_t count) {
  return std::make_unique<Messages>(device, network, view, ops, count);
}
