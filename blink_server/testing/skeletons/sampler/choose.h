// The sampler `my_plugin`: a plain draw from the tokens that weigh at least option::least.
// Replace it by yours; what `choice` offers is in blink/sampler_plugin.h.
template <class Block>
BLINK_DEV int32_t choose(blink::Choice<Block>& choice) {
    return choice.draw(option::least);
}
