//===- Transfer.cpp - Parameters to and from rank 0 -----------------------===//

#include "runtime/src/common/Transfer.h"
#include "runtime/src/common/Types.h"
#include <algorithm>

using namespace mgq::rt;

Transfer::Transfer(const RankView &view, Arena &arena, Group &group)
    : view(view), arena(arena), group(group) {
  for (int32_t stage = 0; stage < view.program.stages; ++stage)
    places.push_back(placesByParam(view.program, view.program.ranks[stage]));
}

std::vector<int32_t> Transfer::paramsWith(ParamPart part) const {
  std::vector<int32_t> found = trainableParams(view.program);
  if (part == ParamPart::Master)
    found.erase(std::remove_if(found.begin(), found.end(),
                               [&](int32_t i) {
                                 const mgq_param &param =
                                     view.program.params[i];
                                 return param.stored.type == MGQ_F32;
                               }),
                found.end());
  return found;
}

/// The offset in the arena, -1 where a rank does not keep the part.
int64_t Transfer::offsetOf(const mgq_place *place, ParamPart part) const {
  if (!place)
    return -1;
  const int64_t offsets[] = {place->value_offset,    place->grad_offset,
                             place->momentum_offset, place->variance_offset,
                             place->value_offset,    place->grad_offset};
  return offsets[static_cast<int>(part)];
}

template <typename Visit>
void Transfer::forPieces(int32_t param, Visit visit) const {
  int64_t total = paramElements(view.program.params[param]);
  for (int64_t begin = 0; begin < total; begin += pieceElements)
    visit(begin, std::min(pieceElements, total - begin));
}

/// The same of this rank's own array.
float *Transfer::ownPlace(int32_t param, ParamPart part) const {
  int64_t offset = offsetOf(places[view.stage][param], part);
  if (part == ParamPart::Staging)
    offset += staging - view.tables.residuals.gradients;
  return arena.floatsAt(offset);
}

/// A tensor that is transposed, where the host can: `own`, or a copy of it,
/// with its values if `fetch`.
float *Transfer::onHost(int32_t param, float *own, bool fetch) {
  if (!arena.device().accelerator())
    return own;
  whole.resize(paramElements(view.program.params[param]));
  if (fetch)
    arena.device().readNow(whole.data(), own,
                           static_cast<int64_t>(whole.size()) * 4);
  return whole.data();
}

void Transfer::copyOut(int32_t param, ParamPart part, int64_t begin,
                       int64_t count, float *to) {
  const mgq_param &entry = view.program.params[param];
  float *from = ownPlace(param, part);
  if (entry.canonical_permutation)
    transpose(onHost(param, from, begin == 0), to, shapeOf(entry.stored),
              entry.canonical_permutation, begin, count);
  else
    arena.device().readNow(to, from + begin, count * 4);
}

void Transfer::copyIn(int32_t param, ParamPart part, int64_t begin,
                      int64_t count, const float *from) {
  const mgq_param &entry = view.program.params[param];
  Device &device = arena.device();
  float *to = ownPlace(param, part);
  if (!entry.canonical_permutation)
    return device.write(to + begin, from, count * 4);
  float *host = onHost(param, to, /*fetch=*/false);
  untranspose(from, host, shapeOf(entry.stored), entry.canonical_permutation,
              begin, count);
  if (host != to && begin + count == paramElements(entry))
    forPieces(param, [&](int64_t first, int64_t size) {
      device.write(to + first, host + first, size * 4);
    });
}

void Transfer::read(int32_t param, ParamPart part, int64_t begin, int64_t count,
                    float *to) {
  int32_t owner = view.program.params[param].owner;
  group.pulse(); // Disks are slow.
  if (owner == view.stage)
    copyOut(param, part, begin, count, to);
  else
    group.receiveNow(to, count * 4, owner, TagTensor);
}

void Transfer::serve(const std::vector<ParamPart> &parts) {
  if (view.replica > 0)
    return;
  for (ParamPart part : parts)
    for (int32_t param : paramsWith(part)) {
      if (view.program.params[param].owner != view.stage)
        continue;
      forPieces(param, [&](int64_t begin, int64_t count) {
        buffer.resize(std::max<size_t>(buffer.size(), count));
        copyOut(param, part, begin, count, buffer.data());
        group.sendNow(buffer.data(), count * 4, 0, TagTensor);
      });
    }
}

void Transfer::write(int32_t param, ParamPart part, mgq_type type,
                     const std::byte *canonical) {
  forPieces(param, [&](int64_t begin, int64_t count) {
    buffer.resize(std::max<size_t>(buffer.size(), count));
    const float *from = buffer.data();
    convertToFloat(type, canonical + begin * typeBytes(type), buffer.data(),
                   count);
    std::vector<int64_t> requests;
    for (int32_t rank = 1; rank < group.size(); ++rank)
      if (offsetOf(places[rank % view.program.stages][param], part) >= 0)
        requests.push_back(group.send(from, count * 4, rank, TagTensor));
    if (offsetOf(places[view.stage][param], part) >= 0)
      copyIn(param, part, begin, count, from);
    for (int64_t request : requests)
      group.wait(request);
  });
}

void Transfer::accept(const std::vector<ParamPart> &parts) {
  for (ParamPart part : parts)
    for (int32_t param : paramsWith(part)) {
      if (offsetOf(places[view.stage][param], part) < 0)
        continue;
      forPieces(param, [&](int64_t begin, int64_t count) {
        buffer.resize(std::max<size_t>(buffer.size(), count));
        group.receiveNow(buffer.data(), count * 4, 0, TagTensor);
        copyIn(param, part, begin, count, buffer.data());
      });
    }
}
