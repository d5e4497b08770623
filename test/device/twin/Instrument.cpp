//===- Instrument.cpp - Checks before accesses of memory ------------------===//

#include "test/device/twin/Convert.h"
#include "test/device/twin/Twin.h"
#include "llvm/Analysis/ValueTracking.h"
#include "llvm/IR/IRBuilder.h"
#include "llvm/IR/InstIterator.h"
#include "llvm/IR/IntrinsicInst.h"

using namespace llvm;

namespace {
struct Access {
  Value *pointer;
  Type *type;
  mgq_twin_access_kind kind;
  uint64_t align;
};
} // namespace

/// The memory that `inst` reaches, if it is a load, store or atomic.
static std::optional<Access> accessOf(Instruction &inst) {
  if (auto *load = dyn_cast<LoadInst>(&inst))
    return Access{load->getPointerOperand(), load->getType(), MGQ_TWIN_READ,
                  load->getAlign().value()};
  if (auto *store = dyn_cast<StoreInst>(&inst))
    return Access{store->getPointerOperand(),
                  store->getValueOperand()->getType(), MGQ_TWIN_WRITE,
                  store->getAlign().value()};
  if (auto *atomic = dyn_cast<AtomicRMWInst>(&inst))
    return Access{atomic->getPointerOperand(), atomic->getType(),
                  MGQ_TWIN_ATOMIC, atomic->getAlign().value()};
  if (auto *atomic = dyn_cast<AtomicCmpXchgInst>(&inst))
    return Access{atomic->getPointerOperand(),
                  atomic->getNewValOperand()->getType(), MGQ_TWIN_ATOMIC,
                  atomic->getAlign().value()};
  return std::nullopt;
}

/// Local variables, the device's own variables, and what the conversion added
/// need no check.
static bool isPrivate(const Value *pointer) {
  const Value *object = getUnderlyingObject(pointer);
  if (isa<AllocaInst>(object))
    return true;
  if (const auto *argument = dyn_cast<Argument>(object))
    return argument->hasByValAttr(); // A struct among the parameters.
  const auto *global = dyn_cast<GlobalVariable>(object);
  return global && (global->isConstant() || global->isThreadLocal());
}

static void emitCheck(IRBuilder<> &builder, FunctionCallee check,
                      Value *pointer, Value *bytes, mgq_twin_access_kind kind,
                      uint64_t align) {
  Value *flat = builder.CreateAddrSpaceCast(pointer, builder.getPtrTy());
  int32_t word = int32_t(kind) | int32_t(align) << 8;
  builder.CreateCall(check, {flat, bytes, builder.getInt32(word)});
}

static void instrumentRange(AnyMemIntrinsic *inst, FunctionCallee check) {
  IRBuilder<> builder(inst);
  Value *bytes =
      builder.CreateZExtOrTrunc(inst->getLength(), builder.getInt64Ty());
  if (auto *transfer = dyn_cast<AnyMemTransferInst>(inst))
    if (!isPrivate(transfer->getRawSource()))
      emitCheck(builder, check, transfer->getRawSource(), bytes, MGQ_TWIN_READ,
                transfer->getSourceAlign().valueOrOne().value());
  if (!isPrivate(inst->getRawDest()))
    emitCheck(builder, check, inst->getRawDest(), bytes, MGQ_TWIN_WRITE,
              inst->getDestAlign().valueOrOne().value());
}

void mgq::twin::instrument(Module &module) {
  IRBuilder<> types(module.getContext());
  FunctionCallee check = module.getOrInsertFunction(
      "mgq_twin_access", types.getVoidTy(), types.getPtrTy(),
      types.getInt64Ty(), types.getInt32Ty());
  for (Function &function : module)
    for (Instruction &inst : make_early_inc_range(instructions(function))) {
      if (auto *range = dyn_cast<AnyMemIntrinsic>(&inst)) {
        instrumentRange(range, check);
        continue;
      }
      std::optional<Access> access = accessOf(inst);
      if (!access || isPrivate(access->pointer))
        continue;
      IRBuilder<> builder(&inst);
      int64_t bytes = module.getDataLayout().getTypeStoreSize(access->type);
      emitCheck(builder, check, access->pointer, builder.getInt64(bytes),
                access->kind, access->align);
    }
}

void mgq::twin::dropAlignment(Module &module) {
  for (Function &function : module)
    for (Instruction &inst : instructions(function)) {
      if (auto *load = dyn_cast<LoadInst>(&inst))
        if (!load->isAtomic())
          load->setAlignment(Align(1));
      if (auto *store = dyn_cast<StoreInst>(&inst))
        if (!store->isAtomic())
          store->setAlignment(Align(1));
      if (auto *range = dyn_cast<AnyMemIntrinsic>(&inst)) {
        range->setDestAlignment(MaybeAlign());
        if (auto *transfer = dyn_cast<AnyMemTransferInst>(range))
          transfer->setSourceAlignment(MaybeAlign());
      }
    }
}
