//===- Segments.cpp - Cutting a graph into layers
//---------------------------===//
//
// The chain of a transformer narrows between its blocks: one value is live, the
// residual stream, and inside a block two or more. So blocks are what stands
// between the narrowest positions:
//
//     live:      1    2      3          2    1    2        3     2    1
//     chain:     | norm  q k v attn out add | norm gate up mul down add |
//
// Where a value passes through many blocks (the image for all cross-attentions
// of a Q-Former, an encoder's result), all positions there have one more: the
// whole region is one segment at first. It is cut again at its own narrowest
// positions if blocks repeat in it, or equal blocks found elsewhere; inside a
// block nothing of a block's kind repeats, so blocks stay whole.
//
// What is left are single ops between blocks. A norm that follows all blocks of
// a kind (post-norm) belongs to them; the others form segments of their own:
// the embedding before the blocks, the head with the loss after them.
//
//===----------------------------------------------------------------------===//

#include "passes/NN/Segments.h"

#include <map>
#include <set>

using namespace mlir;
using namespace mgq::nn;

namespace {
/// Segments of a chain under construction.
class Cutter {
public:
  explicit Cutter(const Graph &graph);

  SmallVector<Segment> run();

private:
  /// Segments between the narrowest inner positions of one.
  SmallVector<Segment> cutAtMinimum(Segment segment, unsigned outer) const;
  /// Cuts a segment again if that shows repetition, else keeps it. `outer` is
  /// how many values are live at its ends.
  SmallVector<Segment> refine(Segment segment, unsigned outer);
  void keepPassed(SmallVectorImpl<size_t> &positions, Segment region,
                  size_t count) const;
  bool isBlock(Segment segment) const;
  bool hasCore(Segment segment) const;
  Structure structureOf(Segment segment) const;
  SmallVector<Segment> attachNorms(ArrayRef<Segment> leaves) const;
  SmallVector<Segment> joinRuns(ArrayRef<Segment> leaves) const;
  void cutRun(Segment run, SmallVectorImpl<Segment> &segments) const;
  bool isProduct(size_t index) const;
  bool startsAfresh(size_t index) const;

  ArrayRef<Operation *> chain;
  DenseMap<Operation *, size_t> index;
  /// live[p]: chain values defined before position p and used at or after it.
  SmallVector<unsigned> live;
  /// First and last position where each value is live.
  SmallVector<std::pair<size_t, size_t>> ranges;
  /// Blocks found so far.
  std::set<Structure> known;
};
} // namespace

Cutter::Cutter(const Graph &graph) : chain(graph.getChain()) {
  for (auto [i, op] : llvm::enumerate(chain))
    index[op] = i;
  SmallVector<int> change(chain.size() + 2, 0);
  for (auto [i, op] : llvm::enumerate(chain))
    for (Value result : op->getResults()) {
      size_t last = i;
      for (Operation *user : result.getUsers())
        if (auto found = index.find(user); found != index.end())
          last = std::max(last, found->second);
      if (last > i) {
        ++change[i + 1];
        --change[last + 1];
        ranges.push_back({i + 1, last});
      }
    }
  int count = 0;
  for (size_t p = 0; p <= chain.size(); ++p)
    live.push_back(count += change[p]);
}

/// A product with a parameter or a convolution.
bool Cutter::isProduct(size_t i) const {
  return isa<MatmulOp, ConvOp>(chain[i]);
}

/// Whether an op has products or attention and is no lone op.
bool Cutter::isBlock(Segment segment) const {
  if (segment.size() < 2)
    return false;
  for (size_t i = segment.begin; i < segment.end; ++i)
    if (isProduct(i) || isa<AttentionOp>(chain[i]))
      return true;
  return false;
}

/// Whether a segment has what makes a layer: attention, or several products.
bool Cutter::hasCore(Segment segment) const {
  size_t products = 0;
  for (size_t i = segment.begin; i < segment.end; ++i) {
    if (isa<AttentionOp, SoftmaxOp>(chain[i]))
      return true;
    products += isProduct(i);
  }
  return products >= 3;
}

Structure Cutter::structureOf(Segment segment) const {
  SmallVector<Value> operands;
  return describe(chain.slice(segment.begin, segment.size()), {}, operands);
}

/// Keeps the positions of a region where the `count` values that are live
/// longest in it are live: what passes through its blocks. Past the last use of
/// such a value there may be as few live values inside a block.
void Cutter::keepPassed(SmallVectorImpl<size_t> &positions, Segment region,
                        size_t count) const {
  SmallVector<std::pair<size_t, size_t>> lengths; // length, index of the range
  for (auto [i, range] : llvm::enumerate(ranges)) {
    size_t first = std::max(range.first, region.begin);
    size_t last = std::min(range.second, region.end);
    if (first <= last)
      lengths.push_back({last - first, i});
  }
  llvm::sort(lengths, [](auto &a, auto &b) {
    return std::pair(b.first, a.second) < std::pair(a.first, b.second);
  });
  for (auto &[length, i] : ArrayRef(lengths).take_front(count)) {
    auto [first, last] = ranges[i];
    llvm::erase_if(positions, [first = first, last = last](size_t p) {
      return p < first || p > last;
    });
  }
}

SmallVector<Segment> Cutter::cutAtMinimum(Segment segment,
                                          unsigned outer) const {
  unsigned minimum = ~0u;
  for (size_t p = segment.begin + 1; p < segment.end; ++p)
    minimum = std::min(minimum, live[p]);
  SmallVector<size_t> positions;
  for (size_t p = segment.begin + 1; p < segment.end; ++p)
    if (live[p] == minimum)
      positions.push_back(p);
  if (minimum > outer)
    keepPassed(positions, segment, minimum - outer);
  SmallVector<Segment> parts;
  size_t begin = segment.begin;
  for (size_t p : positions) {
    parts.push_back({begin, p});
    begin = p;
  }
  parts.push_back({begin, segment.end});
  return parts;
}

SmallVector<Segment> Cutter::refine(Segment segment, unsigned outer) {
  if (segment.size() < 2)
    return {segment};
  SmallVector<Segment> parts = cutAtMinimum(segment, outer), refined;
  if (parts.size() < 2)
    return {segment};
  unsigned inner = live[parts.front().end];
  std::map<Structure, unsigned> seen;
  bool repeats = false;
  for (Segment part : parts) {
    if (isBlock(part) && hasCore(part)) {
      Structure structure = structureOf(part);
      repeats |= known.count(structure) || ++seen[structure] > 1;
    }
  }
  for (Segment part : parts) {
    SmallVector<Segment> pieces = refine(part, inner);
    repeats |= pieces.size() > 1;
    refined.append(pieces);
  }
  if (!repeats)
    return {segment};
  for (auto &entry : seen)
    known.insert(entry.first);
  return refined;
}

/// Gives the norms that follow a block to it: as many ops as follow all blocks
/// of its structure; of a block without equals, a first norm.
SmallVector<Segment> Cutter::attachNorms(ArrayRef<Segment> leaves) const {
  struct Kind {
    SmallVector<size_t> blocks;
    size_t attached = ~size_t(0);
    std::vector<Structure> following;
  };
  std::map<Structure, Kind> kinds;
  SmallVector<Kind *> kindOf(leaves.size(), nullptr);
  for (size_t i = 0; i < leaves.size(); ++i) {
    if (!isBlock(leaves[i]))
      continue;
    std::vector<Structure> following;
    for (size_t j = i + 1; j < leaves.size() && leaves[j].size() == 1 &&
                           !startsAfresh(leaves[j].begin);
         ++j)
      following.push_back(structureOf(leaves[j]));
    Kind &kind = kinds[structureOf(leaves[i])];
    kindOf[i] = &kind;
    kind.blocks.push_back(i);
    if (kind.blocks.size() == 1)
      kind.following = following;
    size_t common = 0;
    while (common < kind.following.size() && common < following.size() &&
           kind.following[common] == following[common])
      ++common;
    kind.following.resize(common);
  }
  for (auto &[structure, kind] : kinds) {
    kind.attached = kind.following.size();
    size_t next = kind.blocks.front() + 1;
    if (kind.blocks.size() == 1)
      kind.attached = kind.attached > 0 &&
                      isa<LayerNormOp, RMSNormOp>(chain[leaves[next].begin]);
  }
  SmallVector<Segment> attached;
  for (size_t i = 0; i < leaves.size(); ++i) {
    Segment segment = leaves[i];
    if (kindOf[i])
      for (size_t n = kindOf[i]->attached; n > 0; --n)
        segment.end = leaves[++i].end;
    attached.push_back(segment);
  }
  return attached;
}

/// Whether an op takes nothing from the chain: something new begins.
bool Cutter::startsAfresh(size_t i) const {
  return llvm::none_of(chain[i]->getOperands(), [&](Value operand) {
    Operation *op = operand.getDefiningOp();
    return op && index.count(op);
  });
}

/// A long run of products without branches is cut after each product's
/// followers, so that equal ones are one layer.
void Cutter::cutRun(Segment run, SmallVectorImpl<Segment> &segments) const {
  size_t products = 0;
  for (size_t i = run.begin; i < run.end; ++i)
    products += isProduct(i);
  constexpr size_t kLongRun = 4;
  size_t begin = run.begin;
  bool hasProduct = false;
  for (size_t i = run.begin; i < run.end; ++i) {
    bool next = isProduct(i) && hasProduct && products >= kLongRun;
    if (i > begin && (next || startsAfresh(i))) {
      segments.push_back({begin, i});
      begin = i;
      hasProduct = false;
    }
    hasProduct |= isProduct(i);
  }
  segments.push_back({begin, run.end});
}

/// Joins what is between blocks.
SmallVector<Segment> Cutter::joinRuns(ArrayRef<Segment> leaves) const {
  SmallVector<Segment> joined;
  for (size_t i = 0; i < leaves.size();) {
    if (isBlock(leaves[i])) {
      joined.push_back(leaves[i++]);
      continue;
    }
    Segment run = leaves[i++];
    while (i < leaves.size() && !isBlock(leaves[i]))
      run.end = leaves[i++].end;
    cutRun(run, joined);
  }
  return joined;
}

SmallVector<Segment> Cutter::run() {
  if (chain.empty())
    return {};
  Segment all{0, chain.size()};
  // The narrowest positions of all: nothing passes through everything.
  SmallVector<Segment> parts = cutAtMinimum(all, ~0u), leaves;
  unsigned outer = live[parts.front().end];
  for (Segment part : parts)
    if (isBlock(part) && hasCore(part))
      known.insert(structureOf(part));
  for (Segment part : parts)
    leaves.append(refine(part, outer));
  return joinRuns(attachNorms(leaves));
}

SmallVector<Segment> mgq::nn::cutIntoSegments(const Graph &graph) {
  return Cutter(graph).run();
}
