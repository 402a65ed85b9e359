// The plugin PagedAttention for TensorRT 10.3 or later: engines/tensorrt/paged_plugin.py in C++, by the same
// name, fields, inputs and outputs, which that file describes. A plan built with one is served by the other.
#include <NvInferRuntime.h>

#include <atomic>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "attention_launches.h"
#include "kernel_launcher.h"

namespace blink::tensorrt {
namespace {

using namespace nvinfer1;

constexpr char NAME[] = "PagedAttention", VERSION[] = "1", NAMESPACE[] = "blink";
enum Input { QUERIES, KEYS, VALUES, KEY_POOL, VALUE_POOL, TABLES, LENGTHS, STARTS, CU_SEQLENS, INPUTS };
enum Output { MIXED, KEY_POOL_OUT, VALUE_POOL_OUT, OUTPUTS };
constexpr uint64_t ALIGNMENT = 16;  // of addresses, for which the kernels were compiled

std::atomic<ILoggerFinder*> logger_finder{nullptr};

void tell(const std::exception& error) noexcept {
    ILoggerFinder* finder = logger_finder;
    ILogger* logger = finder != nullptr ? finder->findLogger() : nullptr;
    if (logger != nullptr) logger->log(ILogger::Severity::kERROR, (std::string(NAME) + ": " + error.what()).c_str());
}

// What a plan keeps of a layer; its fields point into it.
struct State {
    int32_t sizes[6];  // heads, kv_heads, head_dim, block_size, programs, aliased
    float scale;
    std::string archive;
    std::vector<Kernel> kernels;

    Shape shape() const { return {sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], scale}; }
    bool aliased() const { return sizes[5] != 0; }
};

State read_state(const PluginFieldCollection& collection) {
    State state{};
    const auto field = [&](const char* name, int32_t least) -> const PluginField& {
        for (int32_t i = 0; i < collection.nbFields; ++i) {
            const PluginField& found = collection.fields[i];
            if (std::string(found.name) == name && found.length >= least) return found;
        }
        throw std::runtime_error(std::string("the plan's layer has no field ") + name);
    };
    std::memcpy(state.sizes, field("shape", 6).data, sizeof state.sizes);
    std::memcpy(&state.scale, field("scale", 1).data, sizeof state.scale);
    const PluginField& kernels = field("kernels", 4);
    state.archive.assign(static_cast<const char*>(kernels.data), size_t(kernels.length));
    state.kernels = unpack_kernels(state.archive.data(), state.archive.size());
    return state;
}

class PagedAttention final : public IPluginV3,
                             public IPluginV3OneCore,
                             public IPluginV3OneBuildV2,
                             public IPluginV3OneRuntime {
  public:
    // `serves`: of a plan that was loaded. While one is being built, TensorRT may time a layer over memory that
    // holds anything, block tables too: nothing is launched then.
    PagedAttention(std::shared_ptr<const State> state, bool serves) : state_(std::move(state)), serves_(serves) {
        fields_ = {{"shape", state_->sizes, PluginFieldType::kINT32, 6},
                   {"scale", &state_->scale, PluginFieldType::kFLOAT32, 1},
                   {"kernels", state_->archive.data(), PluginFieldType::kINT8, int32_t(state_->archive.size())}};
        collection_ = {int32_t(fields_.size()), fields_.data()};
    }

    IPluginCapability* getCapabilityInterface(PluginCapabilityType type) noexcept override {
        switch (type) {
            case PluginCapabilityType::kCORE: return static_cast<IPluginV3OneCore*>(this);
            case PluginCapabilityType::kBUILD: return static_cast<IPluginV3OneBuildV2*>(this);
            case PluginCapabilityType::kRUNTIME: return static_cast<IPluginV3OneRuntime*>(this);
        }
        return nullptr;
    }

    IPluginV3* clone() noexcept override {
        try {
            return new PagedAttention(state_, serves_);
        } catch (const std::exception& error) {
            tell(error);
            return nullptr;
        }
    }

    AsciiChar const* getPluginName() const noexcept override { return NAME; }
    AsciiChar const* getPluginVersion() const noexcept override { return VERSION; }
    AsciiChar const* getPluginNamespace() const noexcept override { return NAMESPACE; }

    int32_t getNbOutputs() const noexcept override { return OUTPUTS; }

    int32_t getOutputDataTypes(DataType* outputs, int32_t, DataType const* inputs, int32_t) const noexcept override {
        outputs[MIXED] = inputs[QUERIES];
        outputs[KEY_POOL_OUT] = inputs[KEY_POOL];
        outputs[VALUE_POOL_OUT] = inputs[VALUE_POOL];
        return 0;
    }

    int32_t getOutputShapes(DimsExprs const* inputs, int32_t, DimsExprs const*, int32_t, DimsExprs* outputs, int32_t,
                            IExprBuilder&) noexcept override {
        outputs[MIXED] = inputs[QUERIES];
        outputs[KEY_POOL_OUT] = inputs[KEY_POOL];
        outputs[VALUE_POOL_OUT] = inputs[VALUE_POOL];
        return 0;
    }

    bool supportsFormatCombination(int32_t place, DynamicPluginTensorDesc const* tensors, int32_t inputs,
                                   int32_t) noexcept override {
        const PluginTensorDesc& tensor = tensors[place].desc;
        const bool whole_numbers = place >= TABLES && place < inputs;
        return tensor.format == TensorFormat::kLINEAR &&
               tensor.type == (whole_numbers ? DataType::kINT32 : DataType::kBF16);
    }

    int32_t configurePlugin(DynamicPluginTensorDesc const*, int32_t, DynamicPluginTensorDesc const*,
                            int32_t) noexcept override {
        return 0;
    }

    int32_t getAliasedInput(int32_t output) noexcept override {
        if (!state_->aliased()) return -1;
        return output == KEY_POOL_OUT ? KEY_POOL : output == VALUE_POOL_OUT ? VALUE_POOL : -1;
    }

    size_t getWorkspaceSize(DynamicPluginTensorDesc const* inputs, int32_t, DynamicPluginTensorDesc const*,
                            int32_t) const noexcept override {
        return workspace_bytes(state_->shape(), state_->kernels, inputs[LENGTHS].max.d[0]);
    }

    int32_t onShapeChange(PluginTensorDesc const*, int32_t, PluginTensorDesc const*, int32_t) noexcept override {
        return 0;
    }

    // Kernels are loaded here, not by the first step: a load waits for resident kernels.
    IPluginV3* attachToContext(IPluginResourceContext*) noexcept override {
        try {
            if (serves_) KernelLauncher::instance().load(state_->kernels);
        } catch (const std::exception& error) {
            tell(error);
            return nullptr;
        }
        return clone();
    }

    PluginFieldCollection const* getFieldsToSerialize() noexcept override { return &collection_; }

    int32_t enqueue(PluginTensorDesc const* shapes, PluginTensorDesc const*, void const* const* inputs,
                    void* const* outputs, void* workspace, cudaStream_t stream) noexcept override {
        try {
            const Buffers buffers = addresses(inputs, outputs, workspace);
            if (!serves_) return 0;
            const Step step{shapes[QUERIES].dims.d[0], shapes[LENGTHS].dims.d[0], shapes[TABLES].dims.d[1]};
            KernelLauncher& launcher = KernelLauncher::instance();
            for (const Launch& launch :
                 attention_launches(state_->shape(), state_->kernels, buffers, step, launcher.processors())) {
                launcher.launch(launch, stream);
            }
            return 0;
        } catch (const std::exception& error) {
            tell(error);
            return -1;
        }
    }

  private:
    Buffers addresses(void const* const* inputs, void* const* outputs, void* workspace) const {
        const bool in_place =
            outputs[KEY_POOL_OUT] == inputs[KEY_POOL] && outputs[VALUE_POOL_OUT] == inputs[VALUE_POOL];
        if (!in_place && (state_->aliased() || serves_)) {
            throw std::runtime_error("TensorRT gave a layer's KV memory as a copy: no entry would stay");
        }
        uint64_t together = reinterpret_cast<uint64_t>(workspace);
        for (int i = 0; i < INPUTS; ++i) together |= reinterpret_cast<uint64_t>(inputs[i]);
        for (int i = 0; i < OUTPUTS; ++i) together |= reinterpret_cast<uint64_t>(outputs[i]);
        if (together % ALIGNMENT != 0) {
            throw std::runtime_error("TensorRT gave memory that is not aligned to 16 bytes");
        }
        const auto in = [&](Input place) { return reinterpret_cast<uint64_t>(inputs[place]); };
        const auto out = [&](Output place) { return reinterpret_cast<uint64_t>(outputs[place]); };
        return {in(QUERIES),
                in(KEYS),
                in(VALUES),
                out(KEY_POOL_OUT),
                out(VALUE_POOL_OUT),
                in(TABLES),
                in(LENGTHS),
                in(STARTS),
                in(CU_SEQLENS),
                out(MIXED),
                reinterpret_cast<uint64_t>(workspace)};
    }

    std::shared_ptr<const State> state_;
    bool serves_;
    std::vector<PluginField> fields_;
    PluginFieldCollection collection_{};
};

class Creator final : public IPluginCreatorV3One {
  public:
    AsciiChar const* getPluginName() const noexcept override { return NAME; }
    AsciiChar const* getPluginVersion() const noexcept override { return VERSION; }
    AsciiChar const* getPluginNamespace() const noexcept override { return NAMESPACE; }

    PluginFieldCollection const* getFieldNames() noexcept override {
        static const PluginField fields[] = {{"shape"}, {"scale"}, {"kernels"}};
        static const PluginFieldCollection collection{3, fields};
        return &collection;
    }

    IPluginV3* createPlugin(AsciiChar const*, PluginFieldCollection const* fields,
                            TensorRTPhase phase) noexcept override {
        try {
            auto state = std::make_shared<const State>(read_state(*fields));
            return new PagedAttention(std::move(state), phase == TensorRTPhase::kRUNTIME);
        } catch (const std::exception& error) {
            tell(error);
            return nullptr;
        }
    }
};

}  // namespace
}  // namespace blink::tensorrt

extern "C" void setLoggerFinder(nvinfer1::ILoggerFinder* finder) { blink::tensorrt::logger_finder = finder; }

extern "C" nvinfer1::IPluginCreatorInterface* const* getCreators(int32_t& count) {
    static blink::tensorrt::Creator creator;
    static nvinfer1::IPluginCreatorInterface* const creators[] = {&creator};
    count = 1;
    return creators;
}
