//===- Messages.cpp - Between arenas of GPUs ------------------------------===//

#include "runtime/src/cuda/Messages.h"
#include "runtime/src/common/Error.h"

using namespace mgq::rt;

namespace {
class LocalMessages : public DeviceMessages {
public:
  LocalMessages(Device &device, const RankView &view, const mgq_op *ops,
                int32_t count);
  void begin(int32_t index, std::byte *place) override;
  void wait(int32_t) override {}

private:
  Device &device;
  const mgq_op *ops;
  std::vector<int32_t> others;     ///< The op of the other side; -1: none.
  std::vector<std::byte *> places; ///< Of those begun, until both are.
};
} // namespace

static bool isMessage(const mgq_op &op) {
  return op.kind == MGQ_OP_SEND || op.kind == MGQ_OP_RECEIVE;
}

LocalMessages::LocalMessages(Device &device, const RankView &view,
                             const mgq_op *ops, int32_t count)
    : device(device), ops(ops), others(count, -1), places(count) {
  for (int32_t i = 0; i < count; ++i) {
    if (!isMessage(ops[i]))
      continue;
    if (ops[i].peer != view.stage)
      fail("not supported yet: several stages on GPUs; supported: --stages=1");
    for (int32_t j = 0; j < count; ++j)
      if (isMessage(ops[j]) && ops[j].kind != ops[i].kind &&
          ops[j].tag == ops[i].tag && ops[j].bytes == ops[i].bytes)
        others[i] = j;
    if (others[i] < 0)
      fail("the program's tables are damaged: op {} of kind {}: its other side",
           i, ops[i].kind);
  }
}

void LocalMessages::begin(int32_t index, std::byte *place) {
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

std::unique_ptr<DeviceMessages> mgq::rt::makeLocalMessages(Device &device,
                                                           const RankView &view,
                                                           const mgq_op *ops,
                                                           int32_t count) {
  return std::make_unique<LocalMessages>(device, view, ops, count);
}
