//===- Convert.cpp - Device code becomes host code ------------------------===//

#include "test/device/twin/Convert.h"
#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/IR/IRBuilder.h"
#include "llvm/IR/InlineAsm.h"
#include "llvm/IR/InstIterator.h"
#include "llvm/IR/IntrinsicInst.h"
#include "llvm/IR/ReplaceConstant.h"

using namespace llvm;
using namespace mgq::twin;

static constexpr unsigned sharedSpace = 3;
static constexpr const char *hostLayout =
    "e-m:e-p270:32:32-p271:32:32-p272:64:64-i64:64-i128:128-f80:128-n8:16:32:"
    "64-S128";

/// "256,1,1" of an attribute of `function`, as numbers.
static std::vector<int32_t> dimensions(const Function &function,
                                       StringRef attribute) {
  std::vector<int32_t> result;
  SmallVector<StringRef> parts;
  function.getFnAttribute(attribute).getValueAsString().split(parts, ',', -1,
                                                              false);
  for (StringRef part : parts) {
    int32_t value = 0;
    if (!part.trim().getAsInteger(10, value))
      result.push_back(value);
  }
  if (!result.empty())
    result.resize(3, 1);
  return result;
}

static std::vector<Kernel> findKernels(Module &module) {
  std::vector<Kernel> kernels;
  for (Function &function : module)
    if (function.getCallingConv() == CallingConv::PTX_Kernel)
      kernels.push_back({&function, function.getName().str(),
                         dimensions(function, "nvvm.maxntid"),
                         dimensions(function, "nvvm.reqntid")});
  return kernels;
}

std::vector<CallInst *> mgq::twin::findBarriers(Module &module) {
  std::vector<CallInst *> barriers;
  for (Function &function : module)
    for (Instruction &inst : instructions(function)) {
      auto *call = dyn_cast<CallInst>(&inst);
      Function *callee = call ? call->getCalledFunction() : nullptr;
      if (callee && (callee->getName().starts_with("llvm.nvvm.barrier") ||
                     callee->getName() == "llvm.nvvm.bar.warp.sync"))
        barriers.push_back(call);
    }
  return barriers;
}

//===----------------------------------------------------------------------===//
// Claims that are false on the host
//===----------------------------------------------------------------------===//

static void dropClaims(Module &module) {
  LLVMContext &context = module.getContext();
  AttributeList nothing =
      AttributeList().addFnAttribute(context, Attribute::NoUnwind);
  for (Function &function : module) {
    if (function.isIntrinsic() && !function.getName().starts_with("llvm.nvvm."))
      continue;
    AttributeList kept = nothing;
    for (Argument &argument : function.args())
      if (Type *type = argument.getParamByValType())
        kept =
            kept.addParamAttribute(context, argument.getArgNo(),
                                   Attribute::getWithByValType(context, type));
    function.setAttributes(kept);
    function.setCallingConv(CallingConv::C);
    for (Instruction &inst : make_early_inc_range(instructions(function))) {
      inst.dropUnknownNonDebugMetadata();
      if (isa<AssumeInst>(inst)) {
        inst.eraseFromParent();
        continue;
      }
      auto *call = dyn_cast<CallInst>(&inst);
      if (!call)
        continue;
      if (!isa<MemIntrinsic>(call)) // Theirs say alignment only.
        call->setAttributes({});
      call->setTailCallKind(CallInst::TCK_None);
      call->setCallingConv(CallingConv::C);
    }
  }
}

//===----------------------------------------------------------------------===//
// Calls of leaves
//===----------------------------------------------------------------------===//

/// A word of `text`, which names an instruction or a register.
static std::string assemblyName(StringRef text) {
  std::string name = "twin_asm";
  bool inWord = false, inOperand = false;
  for (char c : text) {
    if (c == '$')
      inOperand = true;
    else if (!isAlnum(c))
      inOperand = false;
    if (inOperand)
      continue;
    if (isAlnum(c)) {
      if (!inWord)
        name += '_';
      name += c;
    }
    inWord = isAlnum(c);
  }
  return name;
}

/// How C passes `type`: i1 as int, vectors of four bytes as an integer.
static Type *typeInC(Type *type, const DataLayout &layout) {
  LLVMContext &context = type->getContext();
  if (type->isIntegerTy(1))
    return Type::getInt32Ty(context);
  if (isa<FixedVectorType>(type) && layout.getTypeStoreSize(type) == 4)
    return Type::getInt32Ty(context);
  return type;
}

static Value *convertForC(IRBuilder<> &builder, Value *value, Type *to) {
  if (value->getType() == to)
    return value;
  if (value->getType()->isIntegerTy() && to->isIntegerTy())
    return builder.CreateZExtOrTrunc(value, to);
  return builder.CreateBitCast(value, to);
}

/// Calls leaf `name` instead, with arguments and results as C has them. `site`
/// is the number of the call.
static void callLeaf(CallInst *call, const std::string &name, unsigned site) {
  Module &module = *call->getModule();
  const DataLayout &layout = module.getDataLayout();
  IRBuilder<> builder(call);
  Type *resultType = call->getType();
  bool isStruct = resultType->isStructTy();

  SmallVector<Value *> arguments;
  SmallVector<Type *> types;
  AllocaInst *slot = nullptr;
  if (isStruct) {
    BasicBlock &entry = call->getFunction()->getEntryBlock();
    IRBuilder<> atEntry(&entry, entry.getFirstInsertionPt());
    slot = atEntry.CreateAlloca(resultType);
    arguments.push_back(slot);
    types.push_back(slot->getType());
  }
  for (Value *argument : call->args()) {
    // An immediate or a string of metadata has no place in C.
    if (argument->getType()->isMetadataTy())
      continue;
    Type *type = typeInC(argument->getType(), layout);
    arguments.push_back(convertForC(builder, argument, type));
    types.push_back(type);
  }
  if (isCollective(name)) {
    arguments.push_back(builder.getInt32(site));
    types.push_back(builder.getInt32Ty());
  }
  Type *result = isStruct ? builder.getVoidTy() : typeInC(resultType, layout);
  FunctionCallee leaf = module.getOrInsertFunction(
      name, FunctionType::get(result, types, /*isVarArg=*/false));
  Value *value = builder.CreateCall(leaf, arguments);
  if (isStruct)
    value = builder.CreateLoad(resultType, slot);
  else if (!resultType->isVoidTy())
    value = convertForC(builder, value, resultType);
  if (!resultType->isVoidTy())
    call->replaceAllUsesWith(value);
  call->eraseFromParent();
}

static std::string leafName(const CallInst &call) {
  if (const auto *assembly = dyn_cast<InlineAsm>(call.getCalledOperand()))
    return assemblyName(assembly->getAsmString());
  const Function *callee = call.getCalledFunction();
  if (!callee || !callee->getName().starts_with("llvm.nvvm."))
    return "";
  std::string name = "twin_" + callee->getName().substr(5).str();
  llvm::replace(name, '.', '_');
  return name;
}

static void callLeaves(Module &module) {
  SmallVector<CallInst *> calls;
  for (Function &function : module)
    for (Instruction &inst : instructions(function))
      if (auto *call = dyn_cast<CallInst>(&inst))
        if (!leafName(*call).empty())
          calls.push_back(call);
  unsigned site = 0;
  for (CallInst *call : calls)
    callLeaf(call, leafName(*call), ++site);
  for (Function &function : make_early_inc_range(module))
    if (function.getName().starts_with("llvm.nvvm.") && function.use_empty())
      function.eraseFromParent();
}

//===----------------------------------------------------------------------===//
// bf16
//===----------------------------------------------------------------------===//

/// float -> bfloat as cvt.rn does: ties to even, NaN is 0x7fff. x86 below
/// AVX512-BF16 would call a function, and with it flush subnormal numbers.
static Value *roundToBFloat(IRBuilder<> &builder, Value *value, Type *type) {
  Type *wide = value->getType()->getWithNewType(builder.getInt32Ty());
  Type *narrow = value->getType()->getWithNewType(builder.getInt16Ty());
  auto constant = [&](uint64_t n) { return ConstantInt::get(wide, n); };
  Value *bits = builder.CreateBitCast(value, wide);
  Value *odd = builder.CreateAnd(builder.CreateLShr(bits, 16), constant(1));
  Value *sum =
      builder.CreateAdd(bits, builder.CreateAdd(odd, constant(0x7fff)));
  Value *magnitude = builder.CreateAnd(bits, constant(0x7fffffff));
  Value *isNaN = builder.CreateICmpUGT(magnitude, constant(0x7f800000));
  Value *high = builder.CreateLShr(sum, 16);
  Value *result = builder.CreateSelect(isNaN, constant(0x7fff), high);
  return builder.CreateBitCast(builder.CreateTrunc(result, narrow), type);
}

static void expandBFloatTruncation(Module &module) {
  for (Function &function : module)
    for (Instruction &inst : make_early_inc_range(instructions(function))) {
      auto *cast = dyn_cast<FPTruncInst>(&inst);
      if (!cast || !cast->getType()->getScalarType()->isBFloatTy() ||
          !cast->getSrcTy()->getScalarType()->isFloatTy())
        continue;
      IRBuilder<> builder(cast);
      cast->replaceAllUsesWith(
          roundToBFloat(builder, cast->getOperand(0), cast->getType()));
      cast->eraseFromParent();
    }
}

//===----------------------------------------------------------------------===//
// Shared memory
//===----------------------------------------------------------------------===//

/// The next offset from `bytes` on that is a multiple of `align`, and not of
/// twice that.
static int64_t barelyAligned(int64_t bytes, int64_t align) {
  int64_t offset = (bytes + align - 1) / align * align;
  return offset % (2 * align) == 0 && align < 256 ? offset + align : offset;
}

/// Replaces uses of `variable` by the running block's memory at `offset`.
static void placeShared(GlobalVariable *variable, int64_t offset,
                        GlobalVariable *base) {
  DenseMap<Function *, Value *> addresses;
  for (Use &use : make_early_inc_range(variable->uses())) {
    auto *user = cast<Instruction>(use.getUser());
    Value *&address = addresses[user->getFunction()];
    if (!address) {
      BasicBlock &entry = user->getFunction()->getEntryBlock();
      IRBuilder<> builder(&entry, entry.getFirstInsertionPt());
      Value *start = builder.CreateLoad(builder.getPtrTy(),
                                        builder.CreateThreadLocalAddress(base));
      address = builder.CreateAddrSpaceCast(
          builder.CreateConstGEP1_64(builder.getInt8Ty(), start, offset),
          variable->getType());
    }
    use.set(address);
  }
  variable->eraseFromParent();
}

/// A kernel and the functions that it calls.
static SmallPtrSet<Function *, 4> findReached(Function *kernel) {
  SmallPtrSet<Function *, 4> reached{kernel};
  SmallVector<Function *> open{kernel};
  while (!open.empty())
    for (Instruction &instruction : instructions(open.pop_back_val()))
      if (auto *call = dyn_cast<CallBase>(&instruction))
        if (Function *callee = call->getCalledFunction();
            callee && !callee->isDeclaration() && reached.insert(callee).second)
          open.push_back(callee);
  return reached;
}

/// Gives static shared variables their places, and kernels their sizes. As
/// ptxas does, a kernel has those alone that it uses; what several use comes
/// first, at one place for all.
static void placeSharedVariables(Module &module, const DataLayout &device,
                                 MutableArrayRef<Kernel> kernels) {
  LLVMContext &context = module.getContext();
  auto *base = new GlobalVariable(
      module, PointerType::get(context, 0), /*isConstant=*/false,
      GlobalValue::ExternalLinkage, nullptr, "mgq_twin_shared", nullptr,
      GlobalValue::InitialExecTLSModel);
  SmallVector<GlobalVariable *> common, own, dynamic;
  MapVector<GlobalVariable *, SmallVector<Kernel *>> users;
  for (GlobalVariable &variable : module.globals())
    if (variable.getAddressSpace() == sharedSpace)
      users[&variable];
  for (auto &[variable, kernelsOf] : users)
    convertUsersOfConstantsToInstructions({variable});
  for (Kernel &kernel : kernels) {
    auto reached = findReached(kernel.function);
    for (auto &[variable, kernelsOf] : users)
      if (any_of(variable->users(), [&](User *user) {
            return reached.contains(cast<Instruction>(user)->getFunction());
          }))
        kernelsOf.push_back(&kernel);
  }
  for (auto &[variable, kernelsOf] : users)
    (variable->isDeclaration() ? dynamic
     : kernelsOf.size() == 1   ? own
                               : common)
        .push_back(variable);

  auto place = [&](GlobalVariable *variable, int64_t &bytes) {
    // What the NVPTX printer writes where the IR says nothing.
    Type *type = variable->getValueType();
    int64_t align = variable->getAlign()
                        ? variable->getAlign()->value()
                        : device.getPrefTypeAlign(type).value();
    int64_t offset = barelyAligned(bytes, align);
    bytes = offset + int64_t(device.getTypeAllocSize(type));
    placeShared(variable, offset, base);
  };
  int64_t commonBytes = 0;
  for (GlobalVariable *variable : common) {
    place(variable, commonBytes);
    for (Kernel *kernel : users[variable])
      kernel->sharedBytes = commonBytes;
  }
  for (GlobalVariable *variable : own)
    place(variable, users[variable].front()->sharedBytes);
  for (GlobalVariable *variable : dynamic) {
    int64_t offset = 0; // Dynamic memory is 16-byte aligned.
    for (Kernel *kernel : users[variable])
      offset = std::max(offset, (kernel->sharedBytes + 15) / 16 * 16);
    for (Kernel *kernel : users[variable])
      kernel->sharedBytes = offset;
    placeShared(variable, offset, base);
  }
}

Expected<Facts> mgq::twin::convertToHost(Module &module) {
  if (!module.getTargetTriple().isNVPTX())
    return createStringError("is no device code: its target is '" +
                             module.getTargetTriple().str() + "'");
  Facts facts;
  facts.kernels = findKernels(module);
  for (Kernel &kernel : facts.kernels)
    kernel.function->setLinkage(GlobalValue::InternalLinkage);
  DataLayout device = module.getDataLayout();
  dropClaims(module);
  callLeaves(module);
  expandBFloatTruncation(module);
  module.setTargetTriple(Triple("x86_64-pc-linux-gnu"));
  module.setDataLayout(hostLayout);
  placeSharedVariables(module, device, facts.kernels);
  return facts;
}
