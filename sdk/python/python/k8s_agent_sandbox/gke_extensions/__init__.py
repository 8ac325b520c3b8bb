"""Extensions of one provider."""
